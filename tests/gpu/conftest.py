import math
import os
import time
from types import SimpleNamespace

import pytest
from plugin.project import Project
from stand_in import stand_in_gpu

STAND_IN = "PERFDL_STAND_IN"
"""Variable of the environment with which tests of a device run on the stand-in: `python -m tests.gpu --stand-in`."""
CONFTEST = """
import os

if os.environ.get("PYTEST_PERFDL_WORKER"):
    import stand_in_gpu

    stand_in_gpu.install()
"""


class OnStandIn(Project):
    """A project whose worker processes use the stand-in."""

    def __init__(self, root):
        super().__init__(root)
        self.write("conftest.py", CONFTEST)

    def run(self, *args, **options):
        return super().run(*args, **{**options, "PYTHONPATH": os.environ["PYTHONPATH"]})


@pytest.fixture
def device():
    """Skips a test where there is no CUDA device."""
    torch = pytest.importorskip("torch")
    if not (torch.cuda.is_available() or os.environ.get(STAND_IN)):
        pytest.skip("there is no CUDA device")


@pytest.fixture
def project(tmp_path):
    """A project whose pytest runs in a process of its own."""
    made = OnStandIn if os.environ.get(STAND_IN) else Project
    return made(tmp_path / "project")


@pytest.fixture(params=["stand-in", "device"])
def cuda(request):
    """`torch.cuda` of a device, or of the stand-in; with what both need to be compared.

    `work(ms)` keeps the current stream busy for about so long, and `now()` is the host's time in nanoseconds.
    """
    torch = pytest.importorskip("torch")
    if request.param == "device":
        request.getfixturevalue("device")
        torch.cuda.init()
        cycles = _cycles_per_ms(torch)
        yield SimpleNamespace(
            torch=torch.cuda, work=lambda ms: torch.cuda._sleep(math.ceil(ms * cycles)), now=time.perf_counter_ns
        )
        return
    gpu = stand_in_gpu.Gpu(stand_in_gpu.Setup(jitter=0), stand_in_gpu.ManualClock())
    installed = stand_in_gpu.install(gpu)
    yield SimpleNamespace(torch=torch.cuda, work=lambda ms: gpu.launch("work", round(ms * 1e6)), now=gpu.clock.now)
    installed.remove()


def _cycles_per_ms(torch):
    """Cycles that the device's own waiting loop takes in a millisecond."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        first.record()
        torch.cuda._sleep(10_000_000)
        last.record()
        torch.cuda.synchronize()
    return 10_000_000 / first.elapsed_time(last)
