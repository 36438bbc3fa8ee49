"""A recommendation model in the style of DLRM: big embedding tables, dot-product interactions, two MLPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from plants import planted
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits


@dataclass(frozen=True)
class DLRMConfig:
    """Sizes of a `DLRM`: `tables` tables of `rows` rows and `width` columns, and `dense` plain features."""

    tables: int = 8
    rows: int = 50_000
    width: int = 32
    dense: int = 13
    hidden: int = 256


@dataclass(frozen=True)
class Clicks:
    """A batch of impressions as they come from the log; `pages` is still text."""

    dense: Tensor
    """[batch, dense]"""
    ids: Tensor
    """[tables - 1, batch], rows of all tables but the last"""
    pages: Sequence[str]
    """[batch], looked up in the vocabulary to give rows of the last table"""
    clicked: Tensor
    """[batch], 0.0 or 1.0"""


class Vocabulary:
    """Words and their places, in both directions."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.places = {word: place for place, word in enumerate(words)}

    def encode(self, words: Sequence[str]) -> Tensor:
        """Place of each word, [len(words)]."""
        if planted("list_lookup"):
            return torch.tensor([self.words.index(word) for word in words])
        return torch.tensor([self.places[word] for word in words])


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, each followed by a ReLU."""
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(*layers)


def table(config: DLRMConfig) -> nn.Embedding:
    """An embedding table whose gradient holds only the rows that were looked up."""
    weight = torch.empty(config.rows, config.width).uniform_(-0.05, 0.05)
    return nn.Embedding.from_pretrained(weight, freeze=False, sparse=not planted("dense_gradients"))


class DLRM(nn.Module):
    """Dense features [batch, dense] and table rows [tables, batch] to click logits [batch]."""

    def __init__(self, config: DLRMConfig) -> None:
        super().__init__()
        vectors = config.tables + 1
        self.bottom = mlp(config.dense, config.hidden, config.width)
        self.tables = nn.ModuleList(table(config) for _ in range(config.tables))
        self.top = mlp(config.width + vectors * (vectors - 1) // 2, config.hidden, config.hidden)
        self.click = nn.Linear(config.hidden, 1)
        self.register_buffer("pairs", torch.triu_indices(vectors, vectors, offset=1), persistent=False)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        features = self.bottom(dense)
        vectors = torch.stack([features, *(table(rows) for table, rows in zip(self.tables, ids, strict=True))], 1)
        first, second = self.pairs
        interactions = (vectors @ vectors.transpose(1, 2))[:, first, second]
        return self.click(self.top(torch.cat([features, interactions], 1))).squeeze(1)


def train_step(model: DLRM, optimizer: torch.optim.Optimizer, vocabulary: Vocabulary, batch: Clicks) -> Tensor:
    """One step of click prediction; returns the loss."""
    ids = torch.cat([batch.ids, vocabulary.encode(batch.pages)[None]])
    loss = binary_cross_entropy_with_logits(model(batch.dense, ids), batch.clicked)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
