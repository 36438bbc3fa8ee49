"""Training of a small recommendation model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model import DLRM
from train import Training


@pytest.mark.perf(limits={"step_time": "off", "block_time": "off"})
def test_step(perf: Any) -> None:
    torch.manual_seed(0)
    loss = perf(Training(DLRM()).step)
    assert loss.isfinite()
