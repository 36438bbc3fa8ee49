"""Training fed by a DataLoader: waiting for data is measured apart from computing.

One worker, since several deliver in an order of their own: then which step receives how much is left to chance,
and its operators cannot be counted exactly.
"""

import pytest
import torch
from models.images import image_loader
from models.mixer import Mixer, train_step


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Mixer(layers=1)


@pytest.fixture(params=[0, 1], ids=["in-process", "one-worker"])
def loader(request):
    return image_loader(workers=request.param)


@pytest.mark.perf
def test_train(perf, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    for images, labels in perf.steps(loader):
        loss = train_step(model, optimizer, images, labels)
    assert loss.isfinite()
