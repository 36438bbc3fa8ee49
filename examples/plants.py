"""Regressions that can be switched on in the examples, to see what `pytest --perf` reports.

`PERFDL_PLANT=tanh_gelu pytest --perf examples/` measures the examples as a well-meant change would have left them. The
test files stay the same: plants are in models/, where a line calls `planted("...")`. `PERFDL_PLANT_IN=FOLDER` plants
only in the checkout in that folder, so that the baseline commit, measured in another checkout, stays unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent


class UnknownPlant(ValueError):
    """PERFDL_PLANT names a plant that does not exist."""


@dataclass(frozen=True)
class Plant:
    """A regression and what a measurement must find."""

    tests: tuple[str, ...]
    """Node ids of the tests that it slows down or changes."""
    caught_by: Literal["time", "counts", "both"]
    """Which metrics must detect it: timed, counted or both. For "time" every counted metric stays equal; for
    "counts" the time changes by less than a timed verdict reliably detects."""
    description: str
    expected_cause: tuple[str, ...]
    """Patterns of the operators or idle classes that are a correct first cause; "" where none is needed."""

    def explains(self, cause: str) -> bool:
        """Whether `cause` is a correct first cause for this plant."""
        return any(fnmatchcase(cause, pattern) for pattern in self.expected_cause)


GPT = ("examples/test_gpt.py::test_train_step",)
COMPILED_GPT = ("examples/test_gpt.py::test_train_step_compiled",)
CONVNET = ("examples/test_convnet.py::test_classify",)
DLRM = ("examples/test_dlrm.py::test_train_step",)
LOADERS = (
    "examples/test_dataloader.py::test_train[in-process]",
    "examples/test_dataloader.py::test_train[one-worker]",
)
ACCUMULATION = ("examples/test_grad_accumulation.py::test_micro_step",)
LLAMA_TRAINING = ("examples/test_transformers.py::test_train_step",)
LLAMA_DECODING = ("examples/test_transformers.py::test_decode",)
COMPILED_GRAPH = "## Call CompiledFxGraph*"
ADAMW_LOOP = (
    "aten::_fused_adamw_",
    "aten::lerp_",
    "aten::addcmul_",
    "aten::addcdiv_",
    "aten::sqrt",
    "aten::mul_",
    "aten::div",
    "aten::add_",
)

PLANTS: Mapping[str, Plant] = {
    "softmax_float64": Plant(
        GPT + COMPILED_GPT,
        "both",
        "attention written out, its softmax in float64, instead of the fused operator",
        ("aten::_softmax*", "aten::copy_", "aten::bmm", COMPILED_GRAPH),
    ),
    "loss_item": Plant(
        GPT + COMPILED_GPT,
        "counts",
        "`loss.item()` in every step, which on an accelerator waits for the device",
        ("aten::item", "aten::_local_scalar_dense"),
    ),
    "dropout_twice": Plant(
        GPT + COMPILED_GPT,
        "counts",
        "dropout applied both in the sublayers and around them",
        ("aten::bernoulli_", "aten::div_", "aten::mul", "aten::empty*", "aten::native_dropout*", COMPILED_GRAPH),
    ),
    "fused_optimizer_lost": Plant(
        GPT,
        "counts",
        "AdamW as a loop over parameters instead of one fused operator",
        ADAMW_LOOP,
    ),
    "anomaly_mode": Plant(
        GPT,
        "time",
        "autograd's anomaly mode left on: every operator of the forward pass records a Python traceback",
        ("aten::view", "aten::t", "aten::transpose", "aten::addmm", "aten::native_layer_norm", "Python and host"),
    ),
    "graph_break": Plant(
        COMPILED_GPT,
        "counts",
        "a check for NaN in the middle of the compiled model, which breaks its graph",
        ("aten::isnan", "aten::any", "aten::item", "aten::is_nonzero", "CompiledFunction*", COMPILED_GRAPH),
    ),
    "batchnorm_train_mode": Plant(
        CONVNET,
        "counts",
        "inference without `eval()`: batch statistics computed and running ones updated",
        ("aten::native_batch_norm", "aten::add_"),
    ),
    "channels_last_lost": Plant(
        CONVNET,
        "both",
        "weights and images in contiguous instead of channels-last format",
        ("aten::mkldnn_convolution",),
    ),
    "inference_mode_lost": Plant(
        CONVNET,
        "counts",
        "inference that keeps every activation for a backward pass that never comes",
        ("", "aten::mkldnn_convolution", "aten::native_batch_norm", "aten::gelu", "aten::add"),
    ),
    "tanh_gelu": Plant(
        CONVNET,
        "time",
        "GELU approximated by tanh: the same operator with a slower kernel",
        ("aten::gelu",),
    ),
    "dense_gradients": Plant(
        DLRM,
        "both",
        "gradients as large as the embedding tables instead of only the rows in use",
        ("aten::fill_", "aten::zero_", "aten::add_", "aten::embedding_dense_backward"),
    ),
    "list_lookup": Plant(
        DLRM,
        "time",
        "words looked up by searching a list instead of a dictionary",
        ("Python and host",),
    ),
    "jitter_before_crop": Plant(
        LOADERS,
        "time",
        "color jitter computed on the whole photograph before all but a corner is cropped away",
        ("input",),
    ),
    "collate_through_lists": Plant(
        LOADERS[:1],
        "time",
        "images turned into Python lists and back to become a batch",
        ("input",),
    ),
    "step_every_micro_batch": Plant(
        ACCUMULATION,
        "both",
        "the optimizer stepping after each micro-batch instead of after four",
        (*ADAMW_LOOP, "aten::copy_", "aten::item", "Python and host", "Optimizer.step*", "torch/optim/*"),
    ),
    "quadratic_lookup": Plant(
        ACCUMULATION,
        "time",
        "each parameter found by listing all of them, in every fourth step: only the mean shows it",
        ("Python and host", "*named_parameters"),
    ),
    "eager_attention": Plant(
        LLAMA_TRAINING + LLAMA_DECODING,
        "counts",
        "transformers' own attention instead of the fused operator",
        (
            "aten::bmm",
            "aten::matmul",
            "aten::copy_",
            "aten::_softmax*",
            "aten::_scaled_dot_product*",
            "aten::as_strided",
        ),
    ),
    "padded_to_maximum": Plant(
        LLAMA_TRAINING,
        "both",
        "batches padded to the longest sequence allowed instead of the longest present",
        ("aten::mm",),
    ),
    "cache_disabled": Plant(
        LLAMA_DECODING,
        "both",
        "every new token recomputes all tokens before it",
        ("aten::mm", "aten::mul"),
    ),
}


def active(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Names of the plants that are switched on here.

    Raises
    ------
    UnknownPlant
        When a name is not in `PLANTS`.
    """
    names = frozenset(filter(None, environment.get("PERFDL_PLANT", "").split(",")))
    if unknown := sorted(names - PLANTS.keys()):
        raise UnknownPlant(f"PERFDL_PLANT: no plant is called {', '.join(unknown)}; there are {', '.join(PLANTS)}")
    where = environment.get("PERFDL_PLANT_IN")
    return names if where is None or Path(where).resolve() == ROOT else frozenset()


_ACTIVE = active()


def planted(name: str) -> bool:
    """Whether this plant is switched on.

    Raises
    ------
    KeyError
        When there is no such plant.
    """
    if name not in PLANTS:
        raise KeyError(name)
    return name in _ACTIVE
