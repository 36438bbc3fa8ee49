"""A data loader whose transform takes longer than the model: the step waits for data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trial_package import plant
from trial_package.slower import slower

BATCHES = 10_000
"""More than a measurement takes, so that the loader is not begun anew meanwhile."""


class Images(Dataset[Tensor]):
    """Noise, blurred."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Tensor:
        return slower(lambda: transform(index), plant.TRANSFORM)()


def transform(index: int) -> Tensor:
    """About 10 ms of work on one thread."""
    image: Tensor = torch.rand(24, 3, 64, 64, generator=torch.Generator().manual_seed(index))
    for _ in range(2):
        image = torch.nn.functional.avg_pool2d(image, 5, stride=1, padding=2)
    return image


def loader() -> DataLoader[Tensor]:
    """With one worker: what several deliver comes in an order of their own, and is not counted exactly."""
    return DataLoader(Images(), batch_size=None, num_workers=1)


def fed() -> Callable[[], Tensor]:
    """A step that takes the worker's next batch."""
    weight, batches = torch.randn(64, 64), iter(loader())
    return lambda: next(batches) @ weight
