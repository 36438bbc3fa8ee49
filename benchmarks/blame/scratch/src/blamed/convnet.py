"""A residual network for images in inference, in channels-last format; a step takes about 20 ms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from blamed.plant import planted

BATCH = 8
TAKEN = 112
"""Pixels a side of the images as they come."""
SIDE = 48
"""And as the network wants them."""
WIDTH = 24
CLASSES = 100
SYNONYMS = 40
"""Names of each class."""


class Block(nn.Module):
    """A convolution and a wide pointwise MLP around a shortcut.

    [batch, inputs, height, width] to [batch, outputs, height / stride, width / stride].
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, groups: int = 1, first: bool = False) -> None:
        super().__init__()
        self.space = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.expand = nn.Conv2d(outputs, 3 * outputs, 1)
        self.activation = nn.GELU(approximate="tanh" if planted("gelu_by_tanh") else "none")
        self.project = nn.Conv2d(3 * outputs, outputs, 1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        if planted("shortcut_copied") and self.first:
            shortcut = shortcut.clone()
        x = self.norm(self.space(x))
        if planted("expanded_one_by_one") and self.first:
            x = torch.cat([self.expand(image) for image in x.split(1)])
        else:
            x = self.expand(x)
        return shortcut + self.project(self.activation(x))


class ConvNet(nn.Module):
    """Images [batch, 3, height, width] to logits [batch, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.register_buffer("places", torch.randn(1, WIDTH, SIDE, SIDE))
        wide = 2 * WIDTH
        blocks = [
            Block(WIDTH, WIDTH, first=True),
            Block(WIDTH, wide, stride=2),
            Block(wide, wide, groups=1 if planted("groups_lost") else 4),
        ]
        if planted("block_repeated"):
            blocks.append(Block(wide, wide, groups=4))
        self.stages = nn.Sequential(*blocks)
        self.head = nn.Linear(wide, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stages(self.stem(images) + self.places)
        if planted("checked_for_nan") and not x.isfinite().all():
            raise FloatingPointError("the features contain NaN")
        return self.head(x.mean((-2, -1)))


def prepare(images: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Normalized and of the network's size."""
    images = (images - mean) / deviation
    if planted("normalized_twice"):
        images = (images - mean) / deviation
    return interpolate(images, size=(SIDE, SIDE), mode="bicubic" if planted("resized_bicubic") else "bilinear")


def names_of(classes: Sequence[int], known: Sequence[tuple[str, int]]) -> list[str]:
    """The first name of each class."""
    if planted("names_searched"):
        found = []
        for wanted in classes:
            names = []
            for name, number in known:
                if number == wanted:
                    names.append(name)
            found.append(names[0])
        return found
    return [known[wanted * SYNONYMS][0] for wanted in classes]


def inference() -> Callable[[], list[str]]:
    """One step: images as they come in, names of what they show out."""
    torch.manual_seed(0)
    model = ConvNet().train(planted("evaluation_mode_lost")).to(memory_format=torch.channels_last)
    if planted("memory_format_lost"):
        model.places = model.places.contiguous()
    images = torch.rand(BATCH, 3, TAKEN, TAKEN).contiguous(memory_format=torch.channels_last)
    mean, deviation = torch.full((3, 1, 1), 0.45), torch.full((3, 1, 1), 0.22)
    known = [(f"class {number}, name {synonym}", number) for number in range(CLASSES) for synonym in range(SYNONYMS)]

    def classify() -> list[str]:
        with torch.inference_mode():
            best = model(prepare(images, mean, deviation)).argmax(-1)
        return names_of(best.tolist(), known)

    return classify
