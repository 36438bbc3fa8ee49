"""No room for a trace is told as such, not as a file that cannot be read."""

import resource
from types import SimpleNamespace

import pytest

from pytest_perfdl.measure import profiled_pass
from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.model.failures import PerfError

PLENTY = 2**40


@pytest.fixture
def room(monkeypatch):
    """How many bytes are free, and how large a file may be."""

    def give(free=PLENTY, largest=resource.RLIM_INFINITY):
        monkeypatch.setattr(profiled_pass.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        monkeypatch.setattr(profiled_pass.resource, "getrlimit", lambda _: (largest, largest))

    return give


@pytest.mark.parametrize(
    "text", [None, "", '{"traceEvents": [{"ph": "X", "name": "aten::a'], ids=["none", "empty", "cut short"]
)
def test_a_full_disk(room, tmp_path, text):
    path = tmp_path / "profile.json"
    if text is not None:
        path.write_text(text)
    room(free=3 * 2**20)
    with pytest.raises(PerfError) as found:
        profiled_pass.read_written(path)
    said = str(found.value)
    assert said == (
        f"the profiler could not write its trace: 3.000 MiB are free in {tmp_path}: free some space, or set TMPDIR to "
        "another folder"
    )


def test_a_limit_on_files(room, tmp_path):
    room(largest=2**20)
    with pytest.raises(PerfError, match=r"no file may be larger than 1.000 MiB here: lift the limit \(ulimit -f\)"):
        profiled_pass.read_written(tmp_path / "profile.json")


def test_another_reason(room, tmp_path):
    room()
    with pytest.raises(TraceError):
        profiled_pass.read_written(tmp_path / "profile.json")
