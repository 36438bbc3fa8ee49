import pytest


@pytest.fixture(autouse=True)
def _width(monkeypatch):
    """One width for what is printed, whatever terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "100")
