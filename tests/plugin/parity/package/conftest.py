import pytest


@pytest.fixture(scope="package", autouse=True)
def wide():
    print("package fixture")
    yield
    print("package fixture ends")
