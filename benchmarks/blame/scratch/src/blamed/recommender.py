"""Training on clicks, fed by a loader: embedding tables, their interaction and an MLP; a step takes about 12 ms."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, dropout, relu
from torch.utils.data import DataLoader, Dataset

from blamed.plant import planted

BATCHES = 10_000
"""More than a measurement takes, so that the loader is not begun anew meanwhile."""
BATCH = 512
DENSE = 16
TABLES = 8
ROWS = 4_000
WIDTH = 16
CAMPAIGNS = 120
SEEN = 300_000
"""Figures of which the trend is made."""

Batch = tuple[Tensor, Tensor, Tensor]


class Clicks(Dataset[Batch]):
    """Batches of figures, ids and labels."""

    def __init__(self) -> None:
        self.dense = torch.rand(BATCH, DENSE)
        self.ids = torch.randint(ROWS, (BATCH, TABLES))
        self.labels = torch.randint(2, (BATCH,)).float()
        self.samples = self.dense.tolist()
        self.words = [f"word {number % 97}" for number in range(2 * BATCH)]

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Batch:
        dense = self.dense
        if planted("collated_through_lists"):
            dense = torch.tensor([[float(figure) for figure in sample] for sample in self.samples])
        if planted("hashed_in_loader"):
            _ = [zlib.crc32(f"{index}:{word}".encode()) % ROWS for word in self.words]
        return dense, self.ids, self.labels


class Interaction(nn.Module):
    """Products of all pairs of features: [batch, features, width] to [batch, pairs]."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.pairs = list(combinations(range(features), 2))
        self.register_buffer("places", torch.tensor([features * one + other for one, other in self.pairs]))

    def forward(self, x: Tensor) -> Tensor:
        if planted("pairs_one_by_one"):
            return torch.stack([(x[:, one] * x[:, other]).sum(-1) for one, other in self.pairs], -1)
        if planted("interaction_in_float64"):
            return (x.double() @ x.double().transpose(1, 2)).float().flatten(1)[:, self.places]
        return (x @ x.transpose(1, 2)).flatten(1)[:, self.places]


class Layers(nn.Module):
    """Linear layers with ReLU and, if wanted, dropout between them."""

    def __init__(self, *sizes: int, dropping: bool = False) -> None:
        super().__init__()
        self.dropping = dropping
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = relu(layer(x))
            if self.dropping:
                x = dropout(x, 0.1)
        return self.layers[-1](x)


class Recommender(nn.Module):
    """Figures [batch, figures] and ids [batch, tables] to logits [batch]."""

    def __init__(self) -> None:
        super().__init__()
        sparse = not planted("dense_gradients")
        self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH, sparse=sparse) for _ in range(TABLES))
        self.bottom = Layers(DENSE, 128, WIDTH, dropping=planted("dropout_added"))
        self.interaction = Interaction(TABLES + 1)
        self.top = Layers(WIDTH + (TABLES + 1) * TABLES // 2, 512, 512, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        figures = self.bottom(dense)
        looked_up = [table(column) for table, column in zip(self.tables, ids.unbind(1), strict=True)]
        pairs = self.interaction(torch.stack([figures, *looked_up], 1))
        return self.top(torch.cat([figures, pairs], 1)).squeeze(1)


def penalty(model: nn.Module) -> Tensor:
    """Sum of the layers' squared weights."""
    weights = [*model.bottom.parameters(), *model.top.parameters()]
    return 1e-6 * sum(weight.pow(2).sum() for weight in weights)


def ids_of(names: Sequence[str], known: Sequence[str], places: dict[str, int]) -> list[int]:
    """Numbers of the campaigns."""
    if planted("list_searched"):
        return [known.index(name) for name in names]
    return [places[name] for name in names]


def trend_of(clicks: Tensor) -> Tensor:
    """How much clicks of this age count."""
    return torch.exp(clicks)


def loader() -> DataLoader[Batch]:
    """Loads in this process."""
    return DataLoader(Clicks(), batch_size=None)


def training() -> Callable[[Batch], Tensor]:
    """One step: forward, backward and both optimizers."""
    torch.manual_seed(0)
    model = Recommender()
    tables = torch.optim.SGD(model.tables.parameters(), lr=1e-4)
    others = torch.optim.AdamW([*model.bottom.parameters(), *model.top.parameters()], lr=1e-6, fused=True)
    clicks = torch.rand(SEEN, dtype=torch.float64 if planted("trend_in_float64") else torch.float32)
    known = [f"campaign {number}" for number in range(CAMPAIGNS)]
    places = {name: number for number, name in enumerate(known)}
    names = [known[number * 7 % CAMPAIGNS] for number in range(BATCH)]

    def train_step(batch: Batch) -> Tensor:
        dense, ids, labels = batch
        ids_of(names, known, places)
        trend_of(clicks)
        loss = binary_cross_entropy_with_logits(model(dense, ids), labels)
        if planted("penalty_by_hand"):
            loss = loss + penalty(model)
        loss.backward()
        for optimizer in (tables, others):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return train_step
