"""What is made of a profile: its figures; and no room for a trace is told as such."""

import contextlib
import hashlib
import resource
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.profiler import ProfilerActivity

from pytest_perfdl.analysis.efficiency.roofline import sm_efficiency_est
from pytest_perfdl.measure import process_group, profiled_pass
from pytest_perfdl.measure.commands import Profile
from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import MeasurementPlan
from pytest_perfdl.run.assemble import Repeat, assemble
from pytest_perfdl.trace import read
from pytest_perfdl.trace.model import Category
from unit.analysis.jobs import steady, without
from unit.measure.answers import result
from unit.trace.chrome import corpus_file, kernel, launch, step, trace, x

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
        f"the profiler could not write its trace: only 3.000 MiB are free in {tmp_path}: free disk space, or set "
        "TMPDIR to another directory"
    )


def test_a_limit_on_files(room, tmp_path):
    room(largest=2**20)
    with pytest.raises(PerfError, match=r"the size of files is limited to 1.000 MiB: raise the limit \(ulimit -f\)"):
        profiled_pass.read_written(tmp_path / "profile.json")


def test_another_reason(room, tmp_path):
    room()
    with pytest.raises(TraceError):
        profiled_pass.read_written(tmp_path / "profile.json")


@pytest.mark.parametrize("ranks, shown", [(False, "ProfilerStep#5"), (True, "ProfilerStep#4")])
def test_the_exemplar_is_the_median_step_and_of_ranks_the_one_in_the_middle(monkeypatch, tmp_path, ranks, shown):
    def recorded(*_args, **_options):
        yield False
        return [0]

    lengths = {3: 90, 4: 10, 5: 50}
    found = trace(*(step(number, 100 * number, length) for number, length in lengths.items()))
    monkeypatch.setattr(profiled_pass, "record", recorded)
    monkeypatch.setattr(profiled_pass, "read_written", lambda _: found)
    monkeypatch.setattr(profiled_pass.device, "activity", lambda: None)
    monkeypatch.setattr(profiled_pass, "module_ranges", lambda _: contextlib.nullcontext())
    running = profiled_pass.run(Profile(steps=3, warmup=0, scratch=str(tmp_path), exemplar=True, ranks=ranks))
    next(running)
    with pytest.raises(StopIteration) as ended:
        running.send(None)
    metadata = read(Path(ended.value.value.exemplar)).metadata
    assert metadata["perfdl"]["step"] == shown
    assert ("baseTimeNanoseconds" in metadata) == ranks


def test_what_is_known_of_the_installed_software_is_in_the_record(monkeypatch, tmp_path):
    def recorded(*_args, **_options):
        yield False
        return [0]

    twice = [x("aten::mul", start, length) for start in range(0, 60, 10) for length in (8, 4)]
    found = trace(step(1, 0, 100), *twice, launch(70, 1, 1), kernel("gemm", 75, 9, 1))
    packages = {"torch": "2.9.0", "nvidia-cuda-cupti-cu12": "12.8.90"}
    monkeypatch.setattr(profiled_pass, "installed", packages.get)
    monkeypatch.setattr(profiled_pass, "record", recorded)
    monkeypatch.setattr(profiled_pass, "read_written", lambda _: found)
    monkeypatch.setattr(profiled_pass.device, "activity", lambda: ProfilerActivity.CUDA)
    monkeypatch.setattr(profiled_pass, "module_ranges", lambda _: contextlib.nullcontext())
    running = profiled_pass.run(Profile(steps=1, warmup=0, scratch=str(tmp_path), exemplar=False))
    next(running)
    with pytest.raises(StopIteration) as ended:
        running.send(None)
    profiled = ended.value.value
    told = {each.code: each for each in profiled.findings}
    assert told["doubled-operators"].message.startswith("6 of 6 operators contain an equal operator: counts")
    assert told["known-software"].message.startswith("CUPTI 12.8.90: kernels at the start of a profile")
    assert {told[code].level for code in ("doubled-operators", "known-software")} == {"note"}
    assert profiled.counts["ops"] == (12,)


def profiled(monkeypatch, tmp_path, steps, *events, ranks=False):
    """What a profiled pass of so many steps makes of traces with these events, one for each attempt."""

    def recorded(*_args, **_options):
        yield False
        return [0]

    found = [trace(*each) for each in events]
    monkeypatch.setattr(profiled_pass, "record", recorded)
    monkeypatch.setattr(profiled_pass, "read_written", lambda _: found.pop(0))
    monkeypatch.setattr(profiled_pass.device, "activity", lambda: ProfilerActivity.CUDA)
    monkeypatch.setattr(profiled_pass, "module_ranges", lambda _: contextlib.nullcontext())
    running = profiled_pass.run(Profile(steps=steps, warmup=0, scratch=str(tmp_path), exemplar=False, ranks=ranks))
    for _ in events:
        next(running)
    with pytest.raises(StopIteration) as ended:
        next(running)
    assert found == []
    return ended.value.value


LOSSY = "over 5% of the work of step 3: left out of all figures"


def test_a_profile_that_lacks_kernels_is_recorded_once_more(monkeypatch, tmp_path):
    found = profiled(monkeypatch, tmp_path, 4, without(steady(4), 303, 304), steady(4))
    assert (found.step_ns, found.counts["kernels"]) == ((1_000_000,) * 4, (10,) * 4)
    assert found.findings == ()


def test_two_profiles_that_lack_kernels_have_no_figures(monkeypatch, tmp_path):
    lossy = without(steady(4), 303, 304)
    found = profiled(monkeypatch, tmp_path, 4, lossy, lossy)
    assert (found.step_ns, found.rows, dict(found.counts), found.parts) == ((), (), {}, None)
    (note,) = found.findings
    assert (note.level, note.code) == ("note", "kernels-lost")
    assert note.message.startswith("two profiles are incomplete (2 of 40 kernel launches")
    assert note.message.endswith(f"{LOSSY}): kernels, operators and their counts are not judged, times are")


def test_a_profile_without_any_kernel_of_its_launches_is_none(monkeypatch, tmp_path):
    silent = [one for one in steady(4) if one["cat"] != "kernel"]
    (note,) = profiled(monkeypatch, tmp_path, 4, silent, silent).findings
    assert note.code == "kernels-lost"


def test_of_ranks_a_profile_that_lacks_kernels_stays_invalid(monkeypatch, tmp_path):
    lossy = without(steady(4), 303, 304)
    found = profiled(monkeypatch, tmp_path, 4, lossy, lossy, ranks=True)
    told = {each.code: each for each in found.findings}
    assert {told[code].level for code in ("missing-work", "profile-steps")} == {"invalid"}
    assert LOSSY in told["missing-work"].message
    assert told["profile-steps"].message == "the profiler recorded 3 of 4 steps"
    assert found.counts["kernels"] == found.counts["launches"] == (10,) * 3


def test_the_last_of_the_steps_that_a_pass_ran_is_whole(monkeypatch, tmp_path):
    # A step that runs more operators, as every tenth may, is not taken for one that the profiler has cut.
    more = [x("aten::topk", 3050 + 100 * each, 20) for each in range(5)]
    found = profiled(monkeypatch, tmp_path, 4, [*steady(4), *more])
    assert found.step_ns == (1_000_000,) * 4
    assert found.counts["ops"] == (10, 10, 10, 15)
    assert [each for each in found.findings if each.level == "invalid"] == []


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name, metric, expected",
    [
        ("nccl_rank0", "overlap", 14.946),
        ("nccl_rank0", "device_busy", 44.785),
        ("legacy_gpu_metrics.json", "sm_efficiency", None),
    ],
)
def test_published_figures_are_in_the_record_of_a_test(monkeypatch, tmp_path, name, metric, expected):
    """The traces of others as a test's profile: what was published of them is what a baseline would hold."""

    def recorded(*_args, **_options):
        yield False
        return [0]

    found = read(corpus_file(name))
    monkeypatch.setattr(profiled_pass, "record", recorded)
    monkeypatch.setattr(profiled_pass, "read_written", lambda _: found)
    monkeypatch.setattr(profiled_pass.device, "activity", lambda: ProfilerActivity.CUDA)
    monkeypatch.setattr(profiled_pass, "module_ranges", lambda _: contextlib.nullcontext())
    running = profiled_pass._profiled(Profile(steps=1, warmup=0, scratch=str(tmp_path), exemplar=False))
    next(running)
    with pytest.raises(StopIteration) as ended:
        running.send(None)
    answer = result(profiled=ended.value.value)
    plan = MeasurementPlan(warmup=1, steps=4)
    record = assemble("t.py::t", "hash", plan, [Repeat((answer,))], date="2026-01-01", commit=None)
    (value,) = record.metrics()[metric].values
    assert value == pytest.approx(100 * sm_efficiency_est(found) if expected is None else expected, abs=5e-4)


@pytest.fixture
def alone():
    """A process group of this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("device", [None, ProfilerActivity.CUDA], ids=["host", "device"])
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "raises"])
def test_the_profiler_stops_after_what_collectives_have_left_to_record(monkeypatch, tmp_path, fails, device):
    """The end of a collective that is recorded later is written into memory that the profiler has freed.

    The thread is one of Python's: a callback of a collective that has ended already would run on this one.
    """
    asked, ended, over = [], [], []
    really = process_group.let_collectives_end

    def asks():
        asked.append(time.time_ns())
        really()

    def behind():
        while not (asked or over):
            pass
        hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000)  # without the interpreter's lock
        ended.append(True)

    monkeypatch.setattr(profiled_pass.device, "activity", lambda: device)
    monkeypatch.setattr(process_group, "let_collectives_end", asks)
    monkeypatch.setattr(process_group, "LATE_SECONDS", 60)
    steps = profiled_pass.record(tmp_path / "profile.json", 1, 1, memory=False, keep_last_result=False)
    next(steps)
    next(steps)
    thread = threading.Thread(target=behind)
    thread.start()
    if fails:
        steps.close()
    else:
        with pytest.raises(StopIteration):
            next(steps)
    was_ended = list(ended)
    over.append(True)
    thread.join()
    assert asked
    assert was_ended
    if not fails:
        written = read(tmp_path / "profile.json")
        (row,) = written.matching(lambda name: name == "ProfilerStep#1", written.rows(Category.USER_ANNOTATION))
        assert written.base_ns + written.end[row] < asked[0], "waiting is no part of the step"
