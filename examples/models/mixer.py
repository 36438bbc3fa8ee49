"""An MLP-Mixer for images, trained in the plain way or on large batches in small pieces."""

from __future__ import annotations

import torch
from plants import planted
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def mlp(width: int, hidden: int) -> nn.Sequential:
    """Two linear layers around a GELU."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class MixerBlock(nn.Module):
    """Mixes over patches, then over channels: [batch, patches, width] to the same shape."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.patch_norm = nn.LayerNorm(width)
        self.patch_mlp = mlp(patches, 2 * patches)
        self.channel_norm = nn.LayerNorm(width)
        self.channel_mlp = mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patch_mlp(self.patch_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mlp(self.channel_norm(x))


class Mixer(nn.Module):
    """Images [batch, 3, size, size] to logits [batch, classes]."""

    def __init__(self, size: int = 32, patch: int = 4, width: int = 48, layers: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(MixerBlock((size // patch) ** 2, width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.embed(images).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(patches)).mean(1))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> Tensor:
    """One step of classification; returns the loss."""
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


class AccumulatingTrainer:
    """Adds up the gradients of `every` micro-batches before each optimizer step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, every: int = 4) -> None:
        self.model = model
        self.optimizer = optimizer
        self.every = every
        self.micro_steps = 0

    def micro_step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forward and backward of one micro-batch, and the optimizer when it is due; returns the loss."""
        loss = cross_entropy(self.model(images), labels)
        (loss / self.every).backward()
        self.micro_steps += 1
        if self.micro_steps % self.every == 0 or planted("step_every_micro_batch"):
            if missing := without_gradient(self.model):
                raise RuntimeError(f"no gradient reached {', '.join(missing)}")
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


def without_gradient(model: nn.Module) -> list[str]:
    """Names of the parameters that backward did not reach."""
    if planted("quadratic_lookup"):
        names = [name for name, _ in model.named_parameters()]
        return [name for name in names if dict(model.named_parameters())[name].grad is None]
    return [name for name, parameter in model.named_parameters() if parameter.grad is None]
