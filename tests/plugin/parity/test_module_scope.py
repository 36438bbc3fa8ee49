import pytest
from steps import step


def setup_module():
    print("setup_module")


def teardown_module():
    print("teardown_module")


@pytest.fixture(scope="module", autouse=True)
def wide():
    print("module fixture")
    yield
    print("module fixture ends")


def test_module_scope(perf):
    perf(step)
