"""Activation checkpointing: layers run forward again in the backward pass, and keep their input only."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint


@pytest.mark.perf
def test_checkpointing_costs_at_most_a_forward_pass(perf):
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)) for _ in range(6)
    ]
    batch = torch.randn(128, 256, requires_grad=True)

    def train(run):
        hidden = batch
        for layer in layers:
            hidden = run(layer, hidden)
        hidden.square().mean().backward()

    def keeping_everything():
        train(lambda layer, hidden: layer(hidden))

    def recomputing():
        train(lambda layer, hidden: checkpoint(layer, hidden, use_reentrant=False))

    # A forward pass is a third of the step.
    perf.compare(keeping_everything, recomputing).assert_not_slower(within="60%")
