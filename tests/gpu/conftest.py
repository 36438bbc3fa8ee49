import pytest
from plugin.project import Project


@pytest.fixture(scope="session", autouse=True)
def device():
    """Skips every test of this folder where there is no CUDA device."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")


@pytest.fixture
def project(tmp_path):
    """A project whose pytest runs in a process of its own."""
    return Project(tmp_path / "project")
