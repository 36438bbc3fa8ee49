"""Training of a small GPT."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model import GPT
from train import adamw, tokens, train_step


@pytest.mark.perf(limits={"step_time": "off", "block_time": "off"})
def test_step(perf: Any) -> None:
    torch.manual_seed(0)
    model = GPT()
    loss = perf(train_step, model, adamw(model), tokens())
    assert loss.isfinite()
