"""One fused operator updates all parameters, instead of several for each."""

import pytest
import torch


def training(**options):
    """A model of many small parameters, and the step that trains it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(24)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, **options)
    batch = torch.randn(32, 64)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


@pytest.mark.perf
def test_a_fused_optimizer_is_faster(perf):
    before, after = training(foreach=False, fused=False), training(fused=True)

    def one_by_one():
        before()

    def fused():
        after()

    perf.compare(one_by_one, fused).assert_faster(by="10%")
