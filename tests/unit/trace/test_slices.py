"""Slices: what is read does not depend on where the text was cut, nor what is written on being read."""

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.trace import Event, Trace, loads, read, write
from pytest_perfdl.trace.raw_args import RawArgs
from unit.trace.chrome import each_recording, each_trace_file, kernel, launch, memory, step, text, x


def assert_equal(one: Trace, other: Trace) -> None:
    for field in fields(Trace):
        if not field.init:
            continue  # what a trace remembers of answers
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name == "memory":
            for part in fields(left):
                assert np.array_equal(getattr(left, part.name), getattr(right, part.name)), (field.name, part.name)
        elif field.name == "raw_args":
            assert list(left) == list(right)
        elif isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            assert np.array_equal(left, right), field.name
        else:
            assert left == right, field.name


def counter(name, ts, **series):
    return {"ph": "C", "name": name, "pid": 3, "tid": 0, "ts": ts, "args": series}


EVERYTHING = [
    {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": {"name": "spans"}},
    {"ph": "M", "name": "thread_name", "pid": 100, "tid": "PyTorch Profiler", "args": {"name": "profiler"}},
    x("Iteration", 0, 500, "Trace", pid="Traces", tid="PyTorch Profiler"),
    x("span", 0, 500, "unheard of", pid="Spans", tid=-1),
    step(1, 1.5, 100),
    x("nested", 2, 5, a=[{"ph": 1}, {"ph": 2}, {"name": {"ph": "X"}}], text='},{"ph":"X"', empty={}),
    x('tricky "},{', 3, 1),
    launch(4.001, 1, 9),
    kernel("gemm ✓", 6, 2, 9),
    memory(5, 512, Addr=1),
    memory(4, -512),
    counter("GPU 0 Utilization", 8, sm=0.5, dram=1, note="text", on=True),
    counter("GPU 0 Utilization", 7, sm=0.25),
    {"ph": "X", "name": "no args", "pid": 1, "tid": 1, "ts": 9, "dur": 1},
    {"ph": "X", "name": "odd args", "pid": 1, "tid": 1, "ts": 9, "dur": 1, "args": [1]},
    {"ph": "s", "id": 9, "cat": "ac2g", "name": "ac2g", "pid": 100, "tid": 100, "ts": 4},
]


@given(
    st.lists(st.sampled_from(EVERYTHING), max_size=25),
    st.sampled_from([None, 1, 2]),
    st.integers(1, 700),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_slices_equal_the_whole(events, indent, slice_bytes, bare, metadata_first):
    before = {"schemaVersion": 1, "traceEvents": events}
    after = {"traceEvents": events, "deviceProperties": [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]}
    data = json.dumps(events if bare else before if metadata_first else after, indent=indent).encode()
    assert_equal(loads(data, slice_bytes=slice_bytes), loads(data))


@each_recording
def test_recordings_in_slices_equal_the_whole(path):
    whole = read(path, slice_bytes=2**30)
    for slice_bytes in (1000, 4099, 50_000):
        assert_equal(read(path, slice_bytes=slice_bytes), whole)


@each_trace_file
def test_corpus_in_slices_equals_the_whole(path):
    assert_equal(read(path, slice_bytes=60_000), read(path, slice_bytes=2**30))


def test_exact_times_in_some_slices_only():
    data = text([x("a", 1.5, 1), *[x("b", 1712195495519689.047, 1)] * 3, x("c", 2.25, 1)]).replace(
        b"1712195495519689.0,", b"1712195495519689.047,"
    )
    found = loads(data, slice_bytes=120)
    assert found.start.tolist() == [1500, *[1_712_195_495_519_689_047] * 3, 2250]


def test_memory_comes_in_the_order_of_time():
    found = loads(text(EVERYTHING), slice_bytes=50)
    assert found.memory.time.tolist() == [4000, 5000]
    assert found.memory.bytes.tolist() == [-512, 512]
    assert found.findings == ()


@pytest.mark.parametrize("spill_bytes", [0, 100, 2**20], ids=["all-in-a-file", "mostly-in-a-file", "in-memory"])
def test_arguments_are_the_same_wherever_they_are_stored(spill_bytes):
    found = loads(text(EVERYTHING), slice_bytes=200, spill_bytes=spill_bytes)
    expected = [event.get("args", {}) for event in EVERYTHING if event["ph"] == "X"]
    assert [json.loads(raw) for raw in found.raw_args] == expected
    assert [found.args(row) for row in range(len(found))] == [args if args != [1] else {} for args in expected]
    rows = [3, 4, 5, 1, 0, 7, 7]
    assert json.loads(b"[" + found.raw_args.joined(rows) + b"]") == [expected[row] for row in rows]
    taken = found.raw_args.take(np.array([1, 5, 6]))
    assert isinstance(taken, RawArgs)
    assert [json.loads(raw) for raw in taken] == [expected[1], expected[5], expected[6]]
    assert json.loads(b"[" + taken.joined([0, 1, 2]) + b"]") == [expected[1], expected[5], expected[6]]
    assert found.raw_args.joined([]) == b""
    assert found.raw_args[-1] == b"[1]"
    assert [json.loads(raw) for raw in found.raw_args[2:4]] == expected[2:4]
    with pytest.raises(IndexError):
        found.raw_args[len(found)]


_safe_text = st.text(st.characters(codec="utf-8"), max_size=12)
_events = st.builds(
    lambda name, pid, tid, start, duration, category, args: Event("X", name, pid, tid, start, duration, category, args),
    _safe_text,
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
    # Within ten seconds, and nothing of a device: times that cannot be are changed, see test_sound_times.py.
    st.integers(0, 2**33),
    st.integers(0, 2**40),
    st.sampled_from(["cpu_op", "gpu_user_annotation", "user_annotation", "", "of another kind"]),
    st.none() | st.dictionaries(_safe_text, st.integers(-(2**60), 2**60) | _safe_text | st.lists(st.integers(0, 9))),
)


@given(st.lists(_events, max_size=20), st.integers(1, 500))
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read(events, slice_bytes):
    found = loads(write(None, events, {"made by": "perfdl"}), slice_bytes=slice_bytes)
    assert found.findings == ()
    assert found.metadata == {"displayTimeUnit": "ms", "made by": "perfdl"}
    read_back = sorted(
        (
            int(found.start[row]),
            int(found.duration[row]),
            found.name_of(row),
            int(found.pid[row]),
            found.categories[found.category[row]],
            json.dumps(found.args(row), sort_keys=True),
        )
        for row in range(len(found))
    )
    written = sorted(
        (
            event.start_ns,
            event.duration_ns,
            event.name,
            event.pid,
            event.category,
            json.dumps(dict(event.args or {}), sort_keys=True),
        )
        for event in events
    )
    assert read_back == written
