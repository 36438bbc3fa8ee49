"""A decoder with tied embeddings, a learned bias of attention and checkpointed blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

BATCH, SEQUENCE, VOCABULARY = 8, 128, 2048
WIDTH, HEADS, LAYERS = 128, 4, 2


class Attention(nn.Module):
    """Self-attention of many heads under a mask that is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[batch, time, width] to the same shape."""
        qkv = self.qkv(x)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.projection(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, width] to the same shape."""
        hidden = self.up(x)
        hidden = gelu(hidden)
        return self.down(hidden)


class Block(nn.Module):
    """Attention and an MLP, each normalized before and added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = MLP()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[batch, time, width] to the same shape."""
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Token ids [batch, time] to logits [batch, time, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("causal", torch.full((SEQUENCE, SEQUENCE), -torch.inf).triu(1))
        self.probes: list[Tensor] = []
        self.probe = torch.zeros(BATCH, WIDTH)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """All blocks, each computed again in backward."""
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions.weight[:length]
        mask = self.causal[:length, :length].expand(batch, HEADS, length, length)
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False)
        x = self.norm(x)
        self.probe = x[:, -1].detach()
        return self.head(x)
