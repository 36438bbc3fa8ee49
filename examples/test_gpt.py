"""Training a small GPT: one step forward, backward and of AdamW, run eagerly and compiled."""

import pytest
import torch
from models.gpt import GPT, GPTConfig, adamw, train_step

CONFIG = GPTConfig()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(CONFIG)


@pytest.fixture
def optimizer(model):
    return adamw(model)


@pytest.fixture
def ids():
    return torch.randint(CONFIG.vocabulary, (2, CONFIG.context + 1), generator=torch.Generator().manual_seed(1))


@pytest.mark.perf
def test_train_step(perf, model, optimizer, ids):
    loss = perf(train_step, model, optimizer, ids, items=ids.numel())
    assert loss.isfinite()


@pytest.mark.perf
@pytest.mark.filterwarnings("ignore")  # torch.compile warns about its own code
def test_train_step_compiled(perf, model, optimizer, ids):
    loss = perf(train_step, torch.compile(model), optimizer, ids, items=ids.numel())
    assert loss.isfinite()
