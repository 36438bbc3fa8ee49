"""What is timed: steps of several architectures at given sizes, and what they are made of."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class DataSet:
    """A workload over all combinations of sizes."""

    name: str
    about: str
    step: str
    """Name of the function below that makes a step of sizes."""
    intrinsic: tuple[str, ...]
    extrinsic: tuple[str, ...]
    axes: Mapping[str, tuple[int, ...]]
    grouped: bool = False
    """Whether as many processes as the factor says take the step together."""
    needs: str = "torch"
    """The module that it runs."""

    @property
    def installed(self) -> bool:
        """Whether that is here."""
        return importlib.util.find_spec(self.needs) is not None

    def configurations(self) -> list[dict[str, int]]:
        return [dict(zip(self.axes, sizes, strict=True)) for sizes in product(*self.axes.values())]


def convolutions(*, batch: int, channels: int, depth: int) -> Step:
    """A training step of a plain convolutional network on 32 x 32 images."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Conv2d(channels if number else 3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    return _training(model, lambda: nn.functional.cross_entropy(model(images), labels))


def attention(*, batch: int, length: int, layers: int) -> Step:
    """A training step of a transformer encoder of width 64."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    tokens = torch.randn(batch, length, 64)
    return _training(model, lambda: model(tokens).square().mean())


def perceptron(*, batch: int, width: int, threads: int) -> Step:
    """Inference of a perceptron of four layers."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    model = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(width, width), nn.ReLU())))
    inputs = torch.randn(batch, width)

    def step() -> object:
        with torch.no_grad():
            return model(inputs)

    return step


def recurrent(*, batch: int, length: int) -> Step:
    """A training step of a recurrent network: as many small operations as the sequence is long."""
    import torch
    from torch import nn

    model = nn.GRU(32, 64, batch_first=True)
    inputs = torch.randn(batch, length, 32)
    return _training(model, lambda: model(inputs)[0].square().mean())


def data_parallel(*, batch: int, width: int, processes: int) -> Step:
    """A training step of a perceptron on a share of the batch, with gradients averaged between processes."""
    import torch
    import torch.distributed as dist
    from torch import nn

    model = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(width, width), nn.ReLU())))
    inputs = torch.randn(math.ceil(batch / processes), width)
    train = _training(model, lambda: model(inputs).square().mean(), step=False)

    def step() -> None:
        train()
        if processes > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= processes

    return step


def forest(*, samples: int, features: int, trees: int) -> Step:
    """Fitting a random forest of scikit-learn: no deep learning, and nothing that could be instrumented."""
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor

    random = np.random.default_rng(0)
    columns, target = random.normal(size=(samples, features)), random.normal(size=samples)
    return lambda: RandomForestRegressor(trees, max_depth=6, random_state=0).fit(columns, target)


def compiled(*, batch: int, width: int, layers: int) -> Step:
    """A training step of a residual perceptron in JAX, compiled to one call: nothing of PyTorch."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    import jax
    from jax import numpy as jnp

    keys = jax.random.split(jax.random.key(0), layers + 1)
    weights = [jax.random.normal(key, (width, width)) / width**0.5 for key in keys[1:]]
    inputs = jax.random.normal(keys[0], (batch, width))

    def loss(weights: list[jax.Array]) -> jax.Array:
        found = inputs
        for weight in weights:
            found = found + jnp.tanh(found @ weight)
        return jnp.square(found).mean()

    @jax.jit
    def train(weights: list[jax.Array]) -> list[jax.Array]:
        return [weight - 1e-3 * by for weight, by in zip(weights, jax.grad(loss)(weights), strict=True)]

    return lambda: jax.block_until_ready(train(weights))


def _training(model: object, loss: Callable[[], object], *, step: bool = True) -> Step:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)  # type: ignore[attr-defined]

    def run() -> None:
        optimizer.zero_grad(set_to_none=False)
        loss().backward()  # type: ignore[attr-defined]
        if step:
            optimizer.step()

    return run


DATA_SETS = (
    DataSet(
        "convolutions",
        "training, convolutional network",
        "convolutions",
        ("channels", "depth"),
        ("batch",),
        {"batch": (2, 4, 8, 16), "channels": (8, 16, 32), "depth": (1, 2, 4)},
    ),
    DataSet(
        "attention",
        "training, transformer encoder",
        "attention",
        ("length", "layers"),
        ("batch",),
        {"batch": (2, 4, 8, 16), "length": (32, 64, 128), "layers": (1, 2, 4)},
    ),
    DataSet(
        "threads",
        "inference, perceptron, intra-op threads",
        "perceptron",
        ("width",),
        ("batch", "threads"),
        {"batch": (32, 64, 128, 256), "width": (128, 256, 512, 1024), "threads": (1, 2)},
    ),
    DataSet(
        "processes",
        "training, perceptron, data parallel by gloo",
        "data_parallel",
        ("width",),
        ("batch", "processes"),
        {"batch": (64, 128, 256, 512), "width": (128, 256, 512), "processes": (1, 2, 4)},
        grouped=True,
    ),
    DataSet(
        "recurrent",
        "training, recurrent network",
        "recurrent",
        ("length",),
        ("batch",),
        {"batch": (2, 4, 8, 16, 32), "length": (8, 16, 32, 64, 128)},
    ),
    DataSet(
        "forest",
        "fitting a random forest of scikit-learn",
        "forest",
        ("features", "trees"),
        ("samples",),
        {"samples": (250, 500, 1000, 2000), "features": (4, 8, 16), "trees": (5, 10, 20)},
        needs="sklearn",
    ),
    DataSet(
        "compiled",
        "training, residual perceptron compiled by JAX",
        "compiled",
        ("width", "layers"),
        ("batch",),
        {"batch": (16, 32, 64, 128), "width": (64, 128, 256), "layers": (2, 4, 8)},
        needs="jax",
    ),
)
"""At least two sizes of each axis lie a factor of 2 apart, so that every axis can be extrapolated."""
