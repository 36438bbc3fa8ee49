import pytest
from steps import step


@pytest.mark.perf
def test_package_scope(perf):
    perf(step)
