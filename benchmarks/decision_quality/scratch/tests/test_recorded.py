"""The perf tests that rounds are recorded of."""

import pytest
import torch
from trial_package import plant
from trial_package.data import loader
from trial_package.models import convnet, transformer
from trial_package.slower import slower


@pytest.mark.perf
def test_transformer(perf):
    assert perf(slower(transformer(), plant.EXTRA, every=plant.EVERY)).isfinite()


@pytest.mark.perf
def test_convnet(perf):
    assert perf(slower(convnet(), plant.EXTRA, every=plant.EVERY)).isfinite().all()


@pytest.mark.perf
def test_loader(perf):
    weight = torch.randn(64, 64)
    for image in perf.steps(loader()):
        out = image @ weight
    assert out.isfinite().all()
