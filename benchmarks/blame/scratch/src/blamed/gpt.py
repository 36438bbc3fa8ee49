"""A GPT-style decoder in training: four pre-norm blocks, fused attention, AdamW; a step takes about 20 ms."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from blamed.plant import planted

VOCABULARY = 256
CONTEXT = 64
BATCH = 4
LAYERS = 4
HEADS = 4
WIDTH = 128
HISTORY = 6_000
"""Tokens over which pairs are counted."""

_log = logging.getLogger(__name__)


class Attention(nn.Module):
    """Causal self-attention: [batch, time, width] to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if planted("attention_written_out"):
            future = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
            scores = query @ key.transpose(-2, -1) * query.size(-1) ** -0.5
            mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
        else:
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Two layers with GELU between them."""

    def __init__(self, number: int) -> None:
        super().__init__()
        hidden = (5 if planted("wider_mlp") and number == 3 else 4) * WIDTH
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH)
        self.by_hand = planted("gelu_by_hand") and number == 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x))) if self.by_hand else gelu(x)
        return self.down(x)


class Block(nn.Module):
    """Attention and MLP, each normalized before and added to what came in."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = MLP(number)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Token ids [batch, time] to logits [batch, time, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*map(Block, range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))
        return self.head(self.norm(self.blocks(x)))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of next-token prediction."""
    if planted("loss_in_float64"):
        logits = logits.double()
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def update_average(average: Sequence[Tensor], model: nn.Module) -> None:
    """Follow the weights of the last block slowly."""
    with torch.no_grad():
        for mean, parameter in zip(average, model.blocks[-1].parameters(), strict=True):
            mean.lerp_(parameter, 0.01)


def count_pairs(history: Sequence[int]) -> dict[int, int]:
    """How often one token follows another."""
    counts: dict[int, int] = {}
    before = 0
    for token in history:
        pair = before * VOCABULARY + token
        counts[pair] = counts.get(pair, 0) + 1
        before = token
    return counts


def log_parameters(model: nn.Module) -> None:
    """Keep a record of what is being trained."""
    for name, parameter in model.blocks.named_parameters():
        _log.info("%s: %s of %s", name, tuple(parameter.shape), parameter.dtype)


def training() -> Callable[[], Tensor]:
    """One step: forward, backward and the optimizer."""
    torch.manual_seed(0)
    model = GPT()
    fused = not planted("fused_optimizer_lost")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=fused, foreach=False if not fused else None)
    average = [parameter.detach().clone() for parameter in model.blocks[-1].parameters()]
    ids = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))
    history = torch.randint(VOCABULARY, (HISTORY,)).tolist()
    _log.setLevel(logging.INFO)
    _log.propagate = False
    _log.handlers[:] = [logging.FileHandler("/dev/null")]

    def train_step() -> Tensor:
        loss = loss_of(model(ids[:, :-1]), ids[:, 1:])
        loss.backward()
        if planted("gradient_clipping"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if planted("average_of_weights"):
            update_average(average, model)
        if planted("pairs_counted"):
            count_pairs(history)
        if planted("parameters_logged"):
            log_parameters(model)
        return loss.detach()

    return train_step
