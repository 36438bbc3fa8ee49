"""Operators that torch records twice: recognized under modes and tensor subclasses, and not in plain steps."""

import contextlib

import pytest

from pytest_perfdl.analysis.events.operators import doubled_operators
from pytest_perfdl.analysis.overview.findings import trace_findings
from pytest_perfdl.trace import read
from unit.trace.chrome import each_trace_file, recordings, step, trace, x

SHAPES = {"Input Dims": [[8, 8], [8, 8]]}


def calls(count, inside=("aten::mul", SHAPES), mark=None):
    """So many multiplications, each with another operator inside it, and between the two what marks a dispatch."""
    for start in range(0, 100 * count, 100):
        yield x("aten::mul", start, 50, **SHAPES)
        if mark:
            yield x(mark, start + 5, 40, **SHAPES)
        name, args = inside
        yield x(name, start + 10, 20, **args)


@pytest.mark.parametrize("mark", [None, "PythonDispatchMode", "PythonSubclass"])
def test_equal_operators_inside_each_other(mark):
    plain = (x("aten::empty", 100 * number + 60, 10) for number in range(2))
    marks = ", and 12 more only mark a dispatch" if mark else ""
    assert doubled_operators(trace(*calls(12, mark=mark), *plain)) == (
        f"12 of 14 operators contain an equal operator{marks}: counts of operators may be twice the real ones (a "
        "dispatch mode, or tensor subclasses such as DTensor)"
    )


@pytest.mark.parametrize(
    "events",
    [
        (),
        calls(12, inside=("aten::mul", {"Input Dims": [[8, 8], []]})),
        calls(12, inside=("aten::mul_", SHAPES)),
        calls(2),
        [*calls(12), *(x("aten::add", start, 1) for start in range(2000, 2250))],
        [x("aten::mul", start, 10, **SHAPES) for start in range(0, 100, 10)],
        [x("aten::mul", 0, 50, tid=thread, **SHAPES) for thread in range(100, 112)],
    ],
    ids=["none", "other-shapes", "other-name", "too-few", "small-share", "one-after-the-other", "threads"],
)
def test_what_is_not_doubled(events):
    assert doubled_operators(trace(*events)) == ""


def test_without_shapes_names_decide():
    assert doubled_operators(trace(*calls(12, inside=("aten::mul", {})))) == ""
    bare = ({**event, "args": {}} for event in calls(12))
    assert doubled_operators(trace(*bare)).startswith("12 of 12 operators")


@each_trace_file
def test_public_traces_have_none(path):
    assert doubled_operators(read(path)) == ""


@pytest.mark.parametrize("path", recordings, ids=lambda path: path.name.split(".")[0])
def test_recorded_steps_have_none(path):
    assert doubled_operators(read(path)) == ""


def test_it_is_a_finding_of_the_trace_and_no_count_is_changed():
    made = trace(step(1, 0, 1200), *calls(12))
    assert [each.text for each in trace_findings(made) if each.kind == "doubled operators"] == [doubled_operators(made)]
    assert not [each for each in trace_findings(trace(step(1, 0, 1200), *calls(2))) if each.kind == "doubled operators"]


@pytest.mark.long
@pytest.mark.parametrize("mode", [False, True], ids=["plain", "mode"])
def test_what_this_torch_records(mode, tmp_path):
    import torch
    from torch.autograd.profiler import profile
    from torch.utils._python_dispatch import TorchDispatchMode

    class PassThrough(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def work():
        for _ in range(5):
            (left * left + left).relu()

    left = torch.ones(8, 8)
    with PassThrough():
        work()
    with profile(use_cpu=True, record_shapes=True) as profiler, PassThrough() if mode else contextlib.nullcontext():
        work()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = doubled_operators(read(tmp_path / "trace.json"))
    assert found.startswith("15 of" if mode else "")
    assert bool(found) == mode
