"""A GPT-style decoder and its training step: pre-norm blocks, fused attention, tied embeddings, AdamW."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from plants import planted
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a `GPT`; `width` is a multiple of `heads`."""

    vocabulary: int = 512
    context: int = 256
    layers: int = 2
    heads: int = 8
    width: int = 128
    dropout: float = 0.1


class Attention(nn.Module):
    """Causal self-attention of many heads: [batch, time, width] to the same shape."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = causal_attention(query, key, value)
        return self.dropout(self.projection(mixed.transpose(1, 2).flatten(-2)))


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each position attends to itself and to what came before; all shapes are [batch, head, time, channel]."""
    if planted("softmax_float64"):
        future = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).triu(1)
        scores = query @ key.transpose(-2, -1) * query.size(-1) ** -0.5
        return scores.masked_fill(future, -torch.inf).softmax(-1, dtype=torch.float64).to(value.dtype) @ value
    return scaled_dot_product_attention(query, key, value, is_causal=True)


class Block(nn.Module):
    """Attention and a two-layer MLP, each normalized before and added to what came in."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        if planted("dropout_twice"):
            x = x + self.dropout(self.attention(self.attention_norm(x)))
            return x + self.dropout(self.mlp(self.mlp_norm(x)))
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Token ids [batch, time] to logits [batch, time, vocabulary]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(_initialize)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.size(1), device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(positions))
        if planted("graph_break") and x.isnan().any():
            raise FloatingPointError("the embeddings contain NaN")
        return self.head(self.norm(self.blocks(x)))


def _initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """The optimizer in one fused operator, with so small a learning rate that all measured steps are alike."""
    return torch.optim.AdamW(model.parameters(), lr=1e-7, fused=not planted("fused_optimizer_lost"))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """One step of next-token prediction on `ids` [batch, time + 1]; returns the loss."""
    with torch.autograd.set_detect_anomaly(planted("anomaly_mode"), check_nan=False):
        logits = model(ids[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if planted("loss_item"):
        loss.item()
    return loss.detach()
