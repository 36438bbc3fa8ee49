"""A residual network of three stages, with a second classifier on a part of the batch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

BATCH, SIDE, CLASSES = 24, 64, 1000
WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two convolutions of 3 x 3 beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride > 1:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, outputs, height / stride, width / stride]."""
        shortcut = self.shortcut(x)
        x = self.conv1(x)
        x = relu(self.norm1(x))
        x = self.conv2(x)
        return relu(self.norm2(x) + shortcut)


class Auxiliary(nn.Module):
    """A classifier on an early stage, whose loss helps the layers below."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, classes]."""
        x = self.conv(x)
        x = relu(self.norm(x))
        return self.head(x.mean((2, 3)))


class ResNet(nn.Module):
    """Images [batch, 3, side, side] to logits [batch, classes] and those of the second classifier."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third = WIDTHS
        self.conv = nn.Conv2d(3, first, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(first)
        self.stage1 = nn.Sequential(Block(first, first, 1), Block(first, first, 1))
        self.stage2 = nn.Sequential(Block(first, second, 2), Block(second, second, 1))
        self.stage3 = nn.Sequential(Block(second, third, 2), Block(third, third, 1))
        self.auxiliary = Auxiliary(first, 2 * first)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(third, CLASSES)
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The second classifier gets a quarter of the batch."""
        x = self.conv(images)
        x = self.norm(x)
        x = relu(x)
        x = self.stage1(x)
        early = self.auxiliary(x[: BATCH // 4])
        x = self.stage2(x)
        x = self.stage3(x)
        x = self.pool(x)
        return self.head(x.flatten(1)), early
