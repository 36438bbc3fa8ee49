"""A small residual network for images, in the memory format that convolutions like best."""

from __future__ import annotations

import torch
from plants import planted
from torch import Tensor, nn


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """3x3 convolution and batch normalization."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """A convolution and, in the manner of ConvNeXt, a wide pointwise MLP, around a shortcut.

    [batch, inputs, height, width] to [batch, outputs, height / stride, width / stride].
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.space = convolution(inputs, outputs, stride)
        self.expand = nn.Conv2d(outputs, 3 * outputs, kernel_size=1)
        self.activation = activation()
        self.project = nn.Conv2d(3 * outputs, outputs, kernel_size=1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.project(self.activation(self.expand(self.space(x))))


def activation() -> nn.GELU:
    """Exact GELU, which costs less on a CPU than the approximation by tanh."""
    return nn.GELU(approximate="tanh" if planted("tanh_gelu") else "none")


class ConvNet(nn.Module):
    """Images [batch, 3, height, width] to logits [batch, classes]."""

    def __init__(self, classes: int = 100, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, width), activation())
        self.stages = nn.Sequential(Block(width, width), Block(width, 2 * width, stride=2))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean(dim=(-2, -1)))


def for_inference(model: nn.Module) -> nn.Module:
    """Running statistics instead of the batch's, and weights in channels-last format."""
    model.train(planted("batchnorm_train_mode"))
    if planted("channels_last_lost"):
        return model
    return model.to(memory_format=torch.channels_last)


def classify(model: nn.Module, images: Tensor) -> Tensor:
    """Most probable class of each image, [batch]."""
    if not planted("channels_last_lost"):
        images = images.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode(not planted("inference_mode_lost")):
        return model(images).argmax(-1)
