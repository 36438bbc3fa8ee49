"""Training of a small residual network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model import ResNet
from train import Training, batches


@pytest.mark.perf(limits={"block_time": "off"})  # fed by a loader, a test has no step_time
def test_step(perf: Any) -> None:
    torch.manual_seed(0)
    training = Training(ResNet())
    for images, labels in perf.steps(batches()):
        loss = training.step(images, labels)
    assert loss.isfinite()
