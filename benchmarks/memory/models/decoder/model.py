"""A transformer that decodes token by token from a cache of keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

BATCH, TOKENS, CONTEXT, POSITIONS, VOCABULARY = 32, 48, 256, 4096, 1024
WIDTH, HEADS, LAYERS = 128, 4, 4
CHANNELS = WIDTH // HEADS


class Cache:
    """Keys and values of all layers, made for a whole reply and the token before it at once."""

    def __init__(self) -> None:
        length = TOKENS + 1
        self.keys = torch.zeros(LAYERS, BATCH, HEADS, length, CHANNELS)
        self.values = torch.zeros(LAYERS, BATCH, HEADS, length, CHANNELS)

    def put(self, layer: int, position: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep those of a token [batch, heads, 1, channels]; returns all so far."""
        self.keys[layer, :, :, position] = key.squeeze(2)
        self.values[layer, :, :, position] = value.squeeze(2)
        keys = self.keys[layer, :, :, : position + 1]
        values = self.values[layer, :, :, : position + 1]
        return keys, values


class Attention(nn.Module):
    """A token attends to itself and to those before it."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor, cache: Cache, position: int) -> Tensor:
        """[batch, 1, width] to the same shape."""
        qkv = self.qkv(x).unflatten(-1, (3, HEADS, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        keys, values = cache.put(self.layer, position, key, value)
        mixed = scaled_dot_product_attention(query, keys, values, attn_mask=bias)
        return self.projection(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and an MLP, each normalized before and added to what came in."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(layer)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor, cache: Cache, position: int) -> Tensor:
        """[batch, 1, width] to the same shape."""
        x = x + self.attention(self.attention_norm(x), bias, cache, position)
        return x + self.down(gelu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    """The last tokens [batch, 1] to logits of the next [batch, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block(layer) for layer in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("bias", torch.zeros(HEADS, CONTEXT, CONTEXT))

    def forward(self, ids: Tensor, cache: Cache, position: int) -> Tensor:
        """One token of each reply."""
        x = self.tokens(ids) + self.positions.weight[position].to(self.norm.weight.dtype)
        bias = self.bias[None, :, position : position + 1, : position + 1]
        for block in self.blocks:
            x = block(x, bias, cache, position)
        return self.head(self.norm(x)).squeeze(1)
