"""Decoding with a cache of keys and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model import TOKENS, Decoder
from train import Server


@pytest.mark.perf(limits={"step_time": "off", "block_time": "off"})
def test_step(perf: Any) -> None:
    torch.manual_seed(0)
    reply = perf(Server(Decoder()).step)
    assert reply.size(1) == TOKENS
