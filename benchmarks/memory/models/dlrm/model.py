"""A recommendation model: embedding tables, dot products of all pairs of features, two MLPs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

BATCH, HELD_OUT = 2048, 32
DENSE, TABLES, ROWS, BAG, WIDTH = 13, 16, 1000, 4, 32
BOTTOM, TOP = 512, 512
VECTORS = TABLES + 1
PAIRS = VECTORS * (VECTORS - 1) // 2


class Dropout(nn.Module):
    """Leaves out a part of what comes in."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, scaled so that the mean stays."""
        mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - self.rate)
        return x * mask / (1 - self.rate)


class MLP(nn.Module):
    """Two linear layers, each followed by a ReLU."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs] to [batch, outputs]."""
        x = relu(self.first(x))
        return relu(self.second(x))


class DLRM(nn.Module):
    """Dense features [batch, dense] and bags of rows, each [batch, bag], to click logits [batch]."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = MLP(DENSE, BOTTOM, WIDTH)
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES))
        self.top = MLP(WIDTH + PAIRS, TOP, TOP)
        self.dropout = Dropout(0.1)
        self.click = nn.Linear(TOP, 1)
        first, second = torch.triu_indices(VECTORS, VECTORS, offset=1)
        self.register_buffer("pairs", first * VECTORS + second)

    def forward(self, dense: Tensor, rows: Sequence[Tensor]) -> Tensor:
        """Each pair of features interacts by its dot product."""
        features = self.bottom(dense)
        vectors = torch.stack([features, *(bag(each) for bag, each in zip(self.bags, rows, strict=True))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        interactions = products.gather(1, self.pairs.expand(len(dense), -1))
        hidden = self.top(torch.cat([features, interactions], 1))
        hidden = self.dropout(hidden)
        return self.click(hidden).squeeze(1)
