"""A tiny Llama from Hugging Face `transformers`, with random weights: training and greedy decoding."""

from __future__ import annotations

import inspect

import torch
from plants import planted
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

_CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
"""How this version of transformers calls the argument."""


def tiny_llama() -> LlamaForCausalLM:
    """Two layers of width 192 with grouped-query attention; seeds nothing."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        attn_implementation="eager" if planted("eager_attention") else "sdpa",
    )
    return LlamaForCausalLM(config)


def pad(sequences: list[Tensor], longest: int) -> Tensor:
    """Token ids [batch, time], filled up with -100 to the longest sequence."""
    length = longest if planted("padded_to_maximum") else max(map(len, sequences))
    padded = torch.full((len(sequences), length), -100)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded


def train_step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, sequences: list[Tensor]) -> Tensor:
    """One step of next-token prediction on sequences of different lengths; returns the loss."""
    labels = pad(sequences, longest=224)
    loss = model(input_ids=labels.clamp(min=0), labels=labels, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@torch.inference_mode()
def decode(model: LlamaForCausalLM, prompt: Tensor, tokens: int) -> Tensor:
    """Greedy continuation of `prompt` [batch, time] by `tokens` tokens, prompt included."""
    ids, fresh = prompt, prompt
    cache = None if planted("cache_disabled") else DynamicCache()
    for _ in range(tokens):
        output = model(input_ids=fresh, use_cache=cache is not None, **{_CACHE: cache})
        ids = torch.cat([ids, output.logits[:, -1:].argmax(-1)], dim=1)
        fresh = ids if cache is None else ids[:, -1:]
    return ids
