"""What is made slower, and by how much: nothing here. A trial writes this file anew in its working tree."""

from __future__ import annotations

import torch
from torch import Tensor

EVERY = 0
"""Extra work on every n-th step; 0 for none."""
EXTRA = 0.0
"""That work as a share of the step's own time."""
TRANSFORM = 0.0
"""Share by which the loader's transform takes longer."""


def scan(source: Tensor, target: Tensor) -> None:
    """A cumulative sum that takes about one percent of the training step's time; a trial makes it longer."""
    scanned = 160_000
    torch.cumsum(source[:scanned], 0, out=target[:scanned])
