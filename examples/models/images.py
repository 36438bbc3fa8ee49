"""An image data set with augmentation, and how its samples become a batch: all in NumPy, all repeatable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from plants import planted
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

Image = NDArray[np.float32]


class AugmentedImages(Dataset[tuple[Image, int]]):
    """Synthetic photographs, each cropped, flipped and jittered by the luck of its index alone.

    A real data set is larger than memory; here an epoch of `length` samples cycles through a few images.
    """

    def __init__(self, length: int = 100_000, photographs: int = 16, size: int = 384, crop: int = 32) -> None:
        self.length = length
        self.crop = crop
        self.photographs = np.random.default_rng(0).integers(256, size=(photographs, size, size, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Image, int]:
        luck = np.random.default_rng(index)
        photograph = self.photographs[index % len(self.photographs)]
        if planted("jitter_before_crop"):
            image = random_crop(jitter(photograph, luck), self.crop, luck)
        else:
            image = jitter(random_crop(photograph, self.crop, luck), luck)
        return np.ascontiguousarray(image.transpose(2, 0, 1)), index % 10


def random_crop(image: NDArray, size: int, luck: np.random.Generator) -> NDArray:
    """A square of [size, size, 3], mirrored half of the time."""
    top, left = luck.integers(image.shape[0] - size, size=2)
    square = image[top : top + size, left : left + size]
    return square[:, ::-1] if luck.random() < 0.5 else square


def jitter(image: NDArray[np.uint8], luck: np.random.Generator) -> Image:
    """Bytes to numbers around zero, at a random brightness and gamma."""
    brightness, gamma = luck.uniform(0.8, 1.25, size=2).astype(np.float32)
    bright = np.clip(image.astype(np.float32) * (brightness / 255), 0, 1)
    return bright**gamma - np.float32(0.5)


def collate(samples: Sequence[tuple[Image, int]]) -> tuple[Tensor, Tensor]:
    """Images [batch, 3, height, width] and labels [batch]."""
    images, labels = zip(*samples, strict=True)
    if planted("collate_through_lists"):
        batch = np.array([image.tolist() for image in images], dtype=np.float32)
    else:
        batch = np.stack(images)
    return torch.from_numpy(batch), torch.from_numpy(np.array(labels))


def image_loader(workers: int, batch_size: int = 16) -> DataLoader[tuple[Tensor, Tensor]]:
    """Shuffled batches, in the same order every time."""
    return DataLoader(
        AugmentedImages(),
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(0),
    )
