import pytest
from hypothesis import settings
from unit.trace.chrome import corpus

pytest_plugins = ["pytester"]

# The same examples in every run, whatever the machine is doing.
settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.load_profile("steady")


_WHOLE = 5000
"""Tests of a run that is of the whole suite."""


def pytest_collection_modifyitems(config, items):
    """Facts of public traces are no part of the suite where these are not; `make test` leaves out a tenth at most."""
    long = sum(item.get_closest_marker("long") is not None for item in items)
    if len(items) > _WHOLE and 10 * long > len(items):
        raise pytest.UsageError(f"{long} of {len(items)} tests are marked long: make some of them shorter")
    if not corpus():
        left = [item for item in items if item.get_closest_marker("corpus")]
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)
