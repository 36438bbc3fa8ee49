"""A training step of a small transformer (about 10 ms) and a small network's inference on images (about 3 ms)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from trial_package import plant

SCAN_ROOM = 320_000
"""Elements of the buffers for the cumulative sum, which stay as they are when more of them are summed."""


def transformer() -> Callable[[], Tensor]:
    """One step of training: two layers of width 128, forward, backward and AdamW, and a cumulative sum."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model=128, nhead=4, dim_feedforward=512, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(256, 128), nn.TransformerEncoder(layer, 2), nn.Linear(128, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(256, (4, 32))
    targets = torch.randint(256, (4 * 32,))
    scan_from, scan_to = (torch.zeros(SCAN_ROOM) for _ in range(2))

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        plant.scan(scan_from, scan_to)
        return loss.detach()

    return step


def convnet() -> Callable[[], Tensor]:
    """Inference of five 3x3 convolutions with batch normalization."""
    torch.manual_seed(0)
    widths = (3, 16, 32, 32, 48, 48)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    model = nn.Sequential(*layers).eval()
    images = torch.randn(4, 3, 28, 28)

    def step() -> Tensor:
        with torch.inference_mode():
            output: Tensor = model(images)
        return output

    return step


WORKLOADS = {"transformer": transformer, "convnet": convnet}
