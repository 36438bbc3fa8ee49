"""Training with gradient accumulation: four micro-batches make a cycle, and only the fourth updates."""

import pytest
import torch
from models.mixer import AccumulatingTrainer, Mixer

EVERY = 4


@pytest.fixture
def trainer():
    torch.manual_seed(0)
    model = Mixer()
    return AccumulatingTrainer(model, torch.optim.AdamW(model.parameters(), lr=1e-7), every=EVERY)


@pytest.fixture
def batch():
    luck = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, 32, 32, generator=luck), torch.randint(10, (2,), generator=luck)


@pytest.mark.perf
def test_micro_step(perf, trainer, batch):
    loss = perf(trainer.micro_step, *batch, period=EVERY, items=len(batch[0]))
    assert loss.isfinite()
