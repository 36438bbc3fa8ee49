"""The step of inference: replies of a fixed length, decoded greedily."""

from __future__ import annotations

import torch
from model import BATCH, TOKENS, Cache, Decoder
from torch import Tensor


class Server:
    """Answers requests, one batch of them in a step."""

    def __init__(self, model: Decoder) -> None:
        self.model = model.eval()
        self.requests = 0
        self.memo: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self) -> Tensor:
        """Decode as many tokens as a reply has; returns their ids [batch, tokens]."""
        self.requests += 1
        cache = Cache()
        ids = torch.zeros(BATCH, 1, dtype=torch.int64)
        reply = []
        for position in range(TOKENS):
            logits = self.model(ids, cache, position)
            ids = logits.argmax(-1, keepdim=True)
            reply.append(ids)
        return torch.cat(reply, 1)
