"""Training a recommendation model whose embedding tables are far larger than its MLPs."""

import pytest
import torch
from models.dlrm import DLRM, Clicks, DLRMConfig, Vocabulary, train_step

CONFIG = DLRMConfig()
BATCH = 512
PAGES = 2000


@pytest.fixture
def model():
    torch.manual_seed(0)
    return DLRM(CONFIG)


@pytest.fixture
def vocabulary():
    return Vocabulary([f"/page/{number}" for number in range(PAGES)])


@pytest.fixture
def batch(vocabulary):
    luck = torch.Generator().manual_seed(1)
    return Clicks(
        dense=torch.randn(BATCH, CONFIG.dense, generator=luck),
        ids=torch.randint(CONFIG.rows, (CONFIG.tables - 1, BATCH), generator=luck),
        pages=[vocabulary.words[place] for place in torch.randint(PAGES, (BATCH,), generator=luck).tolist()],
        clicked=torch.rand(BATCH, generator=luck).round(),
    )


@pytest.mark.perf
def test_train_step(perf, model, vocabulary, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loss = perf(train_step, model, optimizer, vocabulary, batch, items=BATCH)
    assert loss.isfinite()
