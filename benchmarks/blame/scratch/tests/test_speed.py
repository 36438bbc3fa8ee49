"""One perf test for each model."""

import pytest
from blamed.workloads import WORKLOADS


@pytest.mark.perf
@pytest.mark.parametrize("model", WORKLOADS)
def test_step(perf, model):
    WORKLOADS[model](perf)
