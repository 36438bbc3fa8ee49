"""What the distributed examples share: a GPT's step that leaves its gradients, and the same step in one process."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.gpt import GPT, GPTConfig

CONFIG = GPTConfig(dropout=0.0)
"""Without dropout: what ranks compute together is then what one process computes."""


def gpt_and_batch(batch: int = 4) -> tuple[GPT, Tensor]:
    """The same model and the same token ids [batch, time + 1] in each rank."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    return model, torch.randint(CONFIG.vocabulary, (batch, CONFIG.context + 1))


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross entropy of logits [batch, time, vocabulary] for ids [batch, time + 1]."""
    return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """One step of next-token prediction, whose gradients are kept until the next one; returns the loss."""
    optimizer.zero_grad()
    loss = next_token_loss(model(ids[:, :-1]), ids)
    loss.backward()
    optimizer.step()
    return loss.detach()


def still_adamw(model: nn.Module) -> torch.optim.AdamW:
    """AdamW at so small a learning rate that no number of measured steps changes a gradient."""
    return torch.optim.AdamW(model.parameters(), lr=1e-12, fused=True)


def gradients_alone(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Gradients of a loss that this process computed from the whole batch, by the names of the parameters."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def assert_same_gradients(model: nn.Module, expected: Mapping[str, Tensor], tolerance: float = 1e-4) -> None:
    """Each gradient that the ranks computed is that of one process, up to a share of the norm of all of them.

    Call it in all ranks: gradients of which each rank holds a part are gathered.
    """
    norm = torch.cat([gradient.flatten() for gradient in expected.values()]).norm()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        error = (whole - expected[name]).norm() / norm
        assert error < tolerance, f"the gradient of {name} differs by {error:.2g} of the norm of all gradients"
