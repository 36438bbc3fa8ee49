"""The step of training: next-token prediction with AdamW."""

from __future__ import annotations

import torch
from model import BATCH, GPT, SEQUENCE, VOCABULARY
from torch import Tensor
from torch.nn.functional import cross_entropy


def tokens() -> Tensor:
    """A batch of text, one token longer than what the model reads."""
    return torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(1))


def adamw(model: GPT) -> torch.optim.AdamW:
    """In one operator, with so small a learning rate that all measured steps are alike."""
    return torch.optim.AdamW(model.parameters(), lr=1e-7, fused=True)


def train_step(model: GPT, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """Forward, backward, update; returns the loss."""
    targets = ids[:, 1:].flatten()
    logits = model(ids[:, :-1]).flatten(0, 1)
    loss = cross_entropy(logits, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
