"""One perf test for each sort of trial."""

import pytest
import torch
from trial_package import plant
from trial_package.data import loader
from trial_package.models import transformer
from trial_package.slower import slower


@pytest.mark.perf
def test_train_step(perf):
    assert perf(slower(transformer(), plant.EXTRA, every=plant.EVERY)).isfinite()


@pytest.mark.perf
def test_fed_by_loader(perf):
    weight = torch.randn(64, 64)
    for image in perf.steps(loader()):
        out = image @ weight
    assert out.isfinite().all()
