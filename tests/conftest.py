from hypothesis import settings
from unit.trace.chrome import corpus

pytest_plugins = ["pytester"]

# The same examples in every run, whatever the machine is doing.
settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.load_profile("steady")


def pytest_collection_modifyitems(config, items):
    """Facts of public traces are no part of the suite where these are not."""
    if not corpus():
        left = [item for item in items if item.get_closest_marker("corpus")]
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)
