"""The step of training: click prediction, Adagrad for the tables, plain gradient descent for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from model import BAG, BATCH, DENSE, DLRM, HELD_OUT, ROWS, TABLES
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

SAMPLE = 1280
"""Impressions of a batch that are held against all others to see how well they are ranked."""


@dataclass(frozen=True)
class Clicks:
    """A batch of impressions."""

    dense: Tensor
    rows: tuple[Tensor, ...]
    clicked: Tensor


def clicks(size: int, luck: torch.Generator) -> Clicks:
    """As many impressions."""
    rows = tuple(torch.randint(ROWS, (size, BAG), generator=luck) for _ in range(TABLES))
    return Clicks(torch.randn(size, DENSE, generator=luck), rows, torch.rand(size, generator=luck).round())


class Adagrad:
    """Learning rates that fall with the gradients seen so far."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        self.parameters = list(parameters)
        self.rate = rate
        self.sums: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters."""
        for parameter in self.parameters:
            assert parameter.grad is not None
            if parameter not in self.sums:
                self.sums[parameter] = torch.zeros_like(parameter)
            total = self.sums[parameter]
            total.addcmul_(parameter.grad, parameter.grad)
            parameter.addcdiv_(parameter.grad, total.sqrt().add_(1e-8), value=-self.rate)

    def zero_grad(self) -> None:
        """Free the gradients."""
        for parameter in self.parameters:
            parameter.grad = None


@torch.no_grad()
def ranking(scores: Tensor) -> Tensor:
    """Mean margin by which a sample of the impressions is ranked above the others."""
    margins = scores[:SAMPLE, None] - scores
    return margins.relu_().mean()


class Training:
    """A model, its optimizers and batches."""

    def __init__(self, model: DLRM) -> None:
        luck = torch.Generator().manual_seed(1)
        self.model = model
        self.sparse = Adagrad(model.bags.parameters(), rate=1e-6)
        others = [each for name, each in model.named_parameters() if not name.startswith("bags.")]
        self.dense = torch.optim.SGD(others, lr=1e-6, fused=True)
        self.batch = clicks(BATCH, luck)
        self.held_out = clicks(HELD_OUT, luck)
        self.ranking = torch.zeros(())
        self.validation = 0.0
        self.losses: list[Tensor] = []

    def step(self) -> Tensor:
        """Forward, backward, update, and a look at what is held out; returns the loss."""
        batch = self.batch
        logits = self.model(batch.dense, batch.rows)
        loss = binary_cross_entropy_with_logits(logits, batch.clicked)
        self.ranking = ranking(logits)
        loss.backward()
        self.dense.step()
        self.sparse.step()
        self.dense.zero_grad()
        self.sparse.zero_grad()
        self.validate()
        return loss.detach()

    def validate(self) -> None:
        """The loss on what is held out."""
        logits = self.model(self.held_out.dense, self.held_out.rows)
        loss = binary_cross_entropy_with_logits(logits, self.held_out.clicked)
        self.validation = loss.item()
