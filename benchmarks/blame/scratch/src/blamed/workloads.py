"""The four models as perf tests measure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def gpt(perf: Any) -> None:
    """Training of a decoder."""
    from blamed.gpt import training

    perf(training())


def convnet(perf: Any) -> None:
    """Inference on images."""
    from blamed.convnet import inference

    perf(inference())


def recommender(perf: Any) -> None:
    """Training, fed by a loader."""
    from blamed.recommender import loader, training

    step = training()
    for batch in perf.steps(loader()):
        step(batch)


def tagger(perf: Any) -> None:
    """Inference with a recurrent network."""
    from blamed.tagger import inference

    perf(inference())


WORKLOADS: Mapping[str, Callable[[Any], None]] = {
    "gpt": gpt,
    "convnet": convnet,
    "recommender": recommender,
    "tagger": tagger,
}
