import pytest
from plugin.project import Project

# pytester forgets what its runs import, and numpy cannot be imported twice.
import pytest_perfdl.run.session  # noqa: F401

collect_ignore = ["parity"]


@pytest.fixture
def project(tmp_path):
    """A project whose pytest runs in a process of its own."""
    return Project(tmp_path / "project")


@pytest.fixture
def inner(pytester, monkeypatch):
    """A project whose pytest runs in this process: for what is decided before anything is measured."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    # The plugin that is left out collects garbage five times at every end.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p perfdl -p no:unraisableexception")
    for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    return pytester
