"""The steps that predictions are held against: three models, with everything switchable that a transform predicts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Options:
    """One step."""

    model: str
    batch: int = 8
    layers: int = 4
    optimizer: str = "loop"
    """"loop", "foreach", "fused"; empty for inference."""
    dropout: bool = False
    clip: bool = False
    bfloat16: bool = False
    channels_last: bool = False
    checkpoint: bool = False
    folded: bool = False
    workers: int = -1
    """-1 for a batch that is there already."""


class Attention(torch.nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int, dropout: bool) -> None:
        super().__init__()
        self.norm, self.other = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.drop = torch.nn.Dropout(0.1) if dropout else torch.nn.Identity()

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.drop(self.out(mixed))
        return x + self.drop(self.down(functional.gelu(self.up(self.other(x)))))


class Residual(torch.nn.Module):
    """A residual network's layer."""

    def __init__(self, channels: int, dropout: bool) -> None:
        super().__init__()
        self.conv, self.norm = (
            torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(channels),
        )
        self.drop = torch.nn.Dropout(0.1) if dropout else torch.nn.Identity()

    def forward(self, x):
        return x + self.drop(functional.relu(self.norm(self.conv(x))))


class Dense(torch.nn.Module):
    """A multilayer perceptron's layer."""

    def __init__(self, width: int, dropout: bool) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(width, width), torch.nn.LayerNorm(width)
        self.drop = torch.nn.Dropout(0.1) if dropout else torch.nn.Identity()

    def forward(self, x):
        return self.drop(functional.relu(self.norm(self.linear(x))))


LAYERS = {"transformer": (Attention, 128), "convnet": (Residual, 32), "mlp": (Dense, 256)}
SHAPES = {"transformer": (64, 128), "convnet": (32, 32, 32), "mlp": (256,)}


class Net(torch.nn.Module):
    """Equal layers one behind the other."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        kind, width = LAYERS[options.model]
        self.layers = torch.nn.ModuleList(kind(width, options.dropout) for _ in range(options.layers))
        self.options = options

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.options.checkpoint else layer(x)
        return x


class Made(Dataset):
    """Samples that take about as long to make as to train on."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index):
        sample = torch.full(self.shape, index / 1e5)
        for _ in range(30):
            sample = torch.sin(sample)
        return sample


def build(options: Options) -> tuple[torch.nn.Module, Callable[[], object]]:
    """The model, and one step of it."""
    torch.manual_seed(0)
    net: torch.nn.Module = Net(options)
    shape = SHAPES[options.model]
    batch = torch.randn(options.batch, *shape)
    if options.channels_last:
        net, batch = net.to(memory_format=torch.channels_last), batch.to(memory_format=torch.channels_last)
    kinds = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False, "fused": False}}
    loader = (
        DataLoader(Made(shape), options.batch, num_workers=max(options.workers, 0)) if options.workers >= 0 else None
    )
    batches = iter(loader) if loader else None
    autocast = torch.autocast("cpu", torch.bfloat16) if options.bfloat16 else contextlib.nullcontext()
    if not options.optimizer:
        net = net.eval()
        if options.folded:
            for layer in net.layers:
                layer.conv, layer.norm = fuse_conv_bn_eval(layer.conv, layer.norm), torch.nn.Identity()

        def infer():
            with torch.no_grad(), autocast:
                return net(batch)

        return net, infer
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-5, **kinds[options.optimizer])

    def train():
        data = next(batches) if batches else batch
        optimizer.zero_grad()
        with autocast:
            loss = net(data).float().square().mean()
        loss.backward()
        if options.clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=False)
        optimizer.step()

    return net, train
