import gzip
import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal

import pytest

from pytest_perfdl.model.errors import ChromeTraceError
from pytest_perfdl.report.traces import collect
from pytest_perfdl.results.trace_files import OURS, stem
from pytest_perfdl.trace import Event, compress, write
from unit.report import runs
from unit.report.importer import problems
from unit.report.steps import drawn


def opened(trace):
    """The events as a viewer reads them, with times in integer nanoseconds."""
    data = trace if isinstance(trace, bytes) else trace.data
    events = json.loads(gzip.decompress(data), parse_float=Decimal)["traceEvents"]
    for event in events:
        for name in ("ts", "dur"):
            if name in event:
                nanos = Decimal(event[name]) * 1000
                assert nanos == int(nanos)
                event[name] = int(nanos)
    return events


def check_importer_rules(events):
    assert problems(events) == []


def original(events):
    """Without what the trace adds to the two exemplars."""
    ours = {"lag behind the baseline (observed)", "device busy", "achieved FLOP/s", "achieved bytes/s", "memory cpu"}
    return [event for event in events if event["name"] not in ours and event.get("cat") not in ("matched", "idle")]


def sides(tmp_path, **new):
    return runs.exemplar(tmp_path / "b.json.gz").read_bytes(), runs.exemplar(tmp_path / "n.json.gz", **new).read_bytes()


REGRESSED = runs.result(
    blame=[
        runs.cause("aten::mm", (2, 1_400_000), (2, 1_900_000), 0.8),
        runs.cause("sgemm", (0, 0), (1, 950_000), 0.2, kind="kernel"),
        runs.cause("aten::linear", (1, 100), (1, 50), -0.01),
        runs.cause("[memory]", call="another"),
    ]
)


def test_two_named_processes_that_keep_every_event(tmp_path):
    base, new = sides(tmp_path, mm_ns=950_000, step_ns=2_600_000, pid=99, origin=123_456_789)
    events = opened(drawn(REGRESSED, "", base, new))
    check_importer_rules(events)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: f"baseline, one observed step: {runs.GPT}", 2: f"current, one observed step: {runs.GPT}"}
    for pid, data in ((1, base), (2, new)):
        there = Counter(event["ph"] for event in opened(data) if event["ph"] != "M")
        kept = [event for event in original(events) if event["pid"] == pid and event["ph"] != "M"]
        assert Counter(event["ph"] for event in kept) == there
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 2]
    assert threads == ["python: thread 4242 (python)", "python GPU 0: stream 7", "idle"]


def test_steps_start_together_and_times_keep_their_nanoseconds(tmp_path):
    base, new = sides(tmp_path, origin=7, pid=99)
    events = opened(drawn(REGRESSED, "", base, new))
    steps = [event for event in events if event["name"] == "ProfilerStep#3"]
    assert [event["pid"] for event in steps] == [1, 2]
    assert steps[0]["ts"] == steps[1]["ts"] == 1_000
    assert min(event["ts"] for event in events if event["ph"] != "M") == 0
    starts = [event["ts"] - 1_000 for event in events if event["pid"] == 2 and event["name"].startswith("aten::mm")]
    assert starts == [20, 700_100]


def test_without_a_step_marker_the_first_events_align(tmp_path):
    def bare(origin):
        return compress(write(None, [Event("X", "a", 1, 1, origin, 5, "cpu_op"), Event("X", "b", 1, 1, origin + 9, 5)]))

    events = opened(drawn(REGRESSED, "", bare(100), bare(70_000)))
    assert [(event["pid"], event["ts"]) for event in events if event["name"] == "a"] == [(1, 0), (2, 0)]


def test_slices_of_a_cause_carry_its_numbers_on_both_sides_and_stand_out_on_one(tmp_path):
    events = opened(drawn(REGRESSED, "", *sides(tmp_path)))
    change = {
        "observed_delta_ns": 0,
        "cause": "aten::mm",
        "base_ns": 1_400_000,
        "new_ns": 1_900_000,
        "delta_ns": 500_000,
        "share": Decimal("0.8"),
        "verdict": "slower",
    }
    current = [event for event in events if event["name"] == "aten::mm (+500.0 µs/step)"]
    assert [event["pid"] for event in current] == [2, 2]
    assert current[0]["args"] == {"External id": 7, "observed_baseline_ns": 700_000, **change}
    baseline = [event for event in events if event["name"] == "aten::mm"]
    assert [event["pid"] for event in baseline] == [1, 1]
    assert baseline[0]["args"] == {"External id": 7, "observed_current_ns": 700_000, **change}
    kernels = {(event["pid"], event["name"]) for event in events if event.get("cat") == "kernel"}
    assert kernels == {(1, "sgemm"), (2, "sgemm (new, +950.0 µs/step)")}
    # A gain of 50 ns is in the arguments alone.
    linear = [event for event in events if event["name"] == "aten::linear"]
    assert [event["args"]["verdict"] for event in linear] == ["faster", "faster"]
    assert not any("cname" in event for event in [*linear, *baseline])
    assert any(event["name"] == "[memory]" for event in events)


def test_launches_and_kernels_of_the_two_sides_cannot_be_confused():
    linked = [
        Event("X", "cudaLaunchKernel", 1, 1, 100, 5, "cuda_runtime", {"correlation": 9}),
        Event("X", "gemm", 0, 7, 200, 50, "kernel", {"correlation": 9}),
        Event("X", "cudaDeviceSynchronize", 1, 1, 300, 5, "cuda_runtime", {"correlation": 0}),
    ]
    side = compress(write(None, linked))
    events = [event for event in opened(drawn(REGRESSED, "", side, side)) if event["ph"] == "X"]
    events = original(events)
    numbers = {(event["pid"], event["name"]): event["args"]["correlation"] for event in events}
    assert numbers[1, "cudaLaunchKernel"] == numbers[1, "gemm"] != numbers[2, "gemm"] == numbers[2, "cudaLaunchKernel"]
    assert numbers[1, "cudaDeviceSynchronize"] == numbers[2, "cudaDeviceSynchronize"] == 0


def test_blame_of_another_call_or_kind_marks_nothing(tmp_path):
    kernel = runs.result(blame=[runs.cause("aten::mm", kind="kernel"), runs.cause("aten::mm", call="forward")])
    trace = drawn(kernel, "", *sides(tmp_path))
    assert not any("verdict" in event.get("args", {}) or "cname" in event for event in opened(trace))
    assert trace.selected is None


def test_overlapping_slices_are_kept_and_nest(tmp_path):
    crossing = [Event("X", "a", 1, 1, 0, 10), Event("X", "b", 1, 1, 5, 10), Event("X", "c", 1, 1, 7, 10)]
    lines = [{"ph": "X", "name": e.name, "pid": 1, "tid": 1, "ts": e.start_ns / 1000, "dur": 0.01} for e in crossing]
    data = gzip.compress(json.dumps({"traceEvents": lines}).encode())
    events = opened(drawn(REGRESSED, "", data, data))
    check_importer_rules(events)
    slices = [event["name"] for event in original(events) if event["ph"] == "X"]
    assert Counter(slices) == {"a": 2, "b": 2, "c": 2}


def test_odd_process_ids_become_valid(tmp_path):
    lines = [
        {"ph": "X", "name": "overhead", "pid": -1, "tid": -5, "ts": 1, "dur": 2},
        {"ph": "X", "name": "span", "pid": "Spans", "tid": "PyTorch Profiler", "ts": "1.5", "dur": "2"},
    ]
    data = gzip.compress(json.dumps({"traceEvents": lines}).encode())
    events = opened(drawn(REGRESSED, "", data, data))
    check_importer_rules(events)
    assert {event["name"] for event in original(events) if event["ph"] == "X"} == {"overhead", "span"}


def test_equal_input_gives_equal_bytes(tmp_path):
    base, new = sides(tmp_path)
    assert drawn(REGRESSED, "", base, new) == drawn(REGRESSED, "", base, new)


DAMAGED = {
    "empty": b"",
    "not-gzip": b"not gzip",
    "not-json": gzip.compress(b"not json"),
    "no-events": gzip.compress(b"[]"),
    "unknown-phase": gzip.compress(b'{"traceEvents": [{"ph": "Q"}]}'),
    "time-in-words": gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": "soon"}]}'),
    "no-time": gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": null}]}'),
    "time-is-nan": gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": "NaN"}]}'),
    "time-is-infinite": gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": "Infinity"}]}'),
    "time-of-many-digits": gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": 1e9999999}]}'),
    "time-that-overflows": gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": 1e16}]}'),
    "duration-of-many-digits": gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1e9999999}]}'),
    "nested-args": gzip.compress(b'{"traceEvents": [{"args": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}]}"),
    "large": gzip.compress(b'{"traceEvents": [' + b" " * 40_000_000 + b"]}"),
    "many-events": gzip.compress(b'{"traceEvents": [' + b"{}," * 600_000 + b"{}]}"),
    "two-members": gzip.compress(b'{"traceEvents": []}') + gzip.compress(b"{}"),
    "list-cut-short": gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}, {"ph": "X", "ts": 2'),
    "negative-duration": gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": -2}]}'),
    "huge-number": gzip.compress(
        b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "args": {"n": 99999999999999999999999}}]}'
    ),
    "truncated": gzip.compress(b'{"traceEvents": []}')[:-9],
}


@pytest.mark.parametrize("broken", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_exemplar_is_one_line_for_people(broken, tmp_path):
    good, _ = sides(tmp_path)
    with pytest.raises(ChromeTraceError) as error:
        drawn(REGRESSED, "", broken, good)
    assert "\n" not in str(error.value)


def test_an_exemplar_that_is_gone_costs_its_trace_alone(tmp_path):
    one = runs.with_traces(REGRESSED, tmp_path)
    (tmp_path / "base.json.gz").unlink()
    (call,) = collect(runs.run(one))[one.id]
    assert [file.role for file in call.files] == ["new"]
    assert "base.json.gz cannot be read" in call.problems[0]


def test_names_of_trace_files_are_safe_and_distinct():
    ids = [
        "t.py::test[a/b]",
        "t.py::test[a-b]",
        "T.py::TEST[a/b]",
        "t.py::test[..]",
        "t.py::" + "x" * 500,
        "t.py::日本",
        "u.py::test[a/b]",
        "t.py::test[\udcff]",
    ]
    names = [f"{stem(name, call)}.new.json.gz" for name in ids for call in ("", "forward")]
    assert len({name.lower() for name in names}) == len(names)
    assert all(name.isascii() and len(name) < 120 and not name.startswith(".") for name in names)
    assert all(OURS.fullmatch(name) for name in names)


def test_share_that_is_not_a_number_is_null(tmp_path):
    odd = replace(
        REGRESSED, judgement=replace(REGRESSED.judgement, blame=(runs.cause("aten::mm", share=float("nan")),))
    )
    events = opened(drawn(odd, "", *sides(tmp_path)))
    assert any(event.get("args", {}).get("share", 0) is None for event in events)


def test_what_one_step_says_is_called_observed_and_is_no_verdict(tmp_path):
    events = opened(drawn(REGRESSED, "", *sides(tmp_path, step_ns=2_900_000)))
    steps = {event["pid"]: event["args"] for event in events if event["name"].startswith("ProfilerStep")}
    assert steps == {
        1: {"observed_current_ns": 2_900_000, "observed_delta_ns": 900_000},
        2: {"observed_baseline_ns": 2_000_000, "observed_delta_ns": 900_000},
    }


def test_the_counter_ends_with_how_much_later_the_last_slice_ends(tmp_path):
    events = opened(drawn(REGRESSED, "", *sides(tmp_path, mm_ns=900_000)))
    counter = [event for event in events if event["name"] == "lag behind the baseline (observed)"]
    assert {event["pid"] for event in counter} == {2}
    # The second aten::mm starts 200 us later and takes 200 us longer.
    assert counter[-1]["args"] == {"ns": 400_000}


def test_arrows_join_the_slices_of_causes(tmp_path):
    events = opened(drawn(REGRESSED, "", *sides(tmp_path)))
    check_importer_rules(events)
    arrows = [event for event in events if event.get("cat") == "matched"]
    assert Counter(event["ph"] for event in arrows) == {"s": 4, "f": 4}
    assert {event["pid"] for event in arrows if event["ph"] == "s"} == {1}


def test_the_device_and_its_idle_time_are_tracks(tmp_path):
    events = opened(drawn(REGRESSED, "", *sides(tmp_path)))
    running = [event["args"]["running"] for event in events if event["name"] == "device busy" and event["pid"] == 1]
    assert running == [1, 0]
    gaps = [event for event in events if event.get("cat") == "idle" and event["pid"] == 1]
    kernel = next(event for event in events if event.get("cat") == "kernel" and event["pid"] == 1)
    step = next(event for event in events if event["name"].startswith("ProfilerStep") and event["pid"] == 1)
    assert gaps[0]["ts"] == step["ts"]
    assert gaps[0]["ts"] + gaps[0]["dur"] == kernel["ts"]
    assert gaps[-1]["ts"] + gaps[-1]["dur"] == step["ts"] + step["dur"]


def test_what_operators_achieve_is_a_counter_of_each_side(tmp_path):
    args = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["float", "float"]}

    def side(ns):
        events = [
            Event("X", "ProfilerStep#1", 1, 1, 5_000, 3_000_000, "user_annotation"),
            Event("X", "aten::linear", 1, 1, 10_000, ns + 10, "cpu_op"),
            Event("X", "aten::mm", 1, 1, 10_000, ns, "cpu_op", args),
            Event("X", "aten::relu", 1, 1, 2_500_000, 100, "cpu_op"),
        ]
        return compress(write(None, events))

    events = opened(drawn(REGRESSED, "", side(1_000_000), side(2_000_000)))
    check_importer_rules(events)
    step = next(event for event in events if event["name"].startswith("ProfilerStep") and event["pid"] == 2)
    for pid, ns in ((1, 1_000_000), (2, 2_000_000)):
        flops = [event for event in events if event["name"] == "achieved FLOP/s" and event["pid"] == pid]
        # 2 x 512 x 512 x 512 FLOPs over its time, and none after it.
        assert [float(event["args"]["Gflop/s"]) for event in flops] == [pytest.approx(2 * 512**3 / ns, abs=1e-3), 0]
        assert [event["ts"] - step["ts"] for event in flops] == [5_000, 5_000 + ns]
        moved = [event for event in events if event["name"] == "achieved bytes/s" and event["pid"] == pid]
        assert float(moved[0]["args"]["GB/s"]) == pytest.approx(3 * 4 * 512**2 / ns, abs=1e-3)


def test_memory_is_a_counter_of_each_side(tmp_path):
    def side(total):
        args = runs.MEMORY | {"Total Allocated": total}
        events = [
            Event("X", "ProfilerStep#1", 1, 1, 0, 1_000, "user_annotation"),
            Event("i", "[memory]", 1, 1, 500, category="cpu_instant_event", args=args),
        ]
        return compress(write(None, events))

    events = opened(drawn(REGRESSED, "", side(100), side(900)))
    counters = [(event["pid"], event["args"]) for event in events if event["name"] == "memory cpu"]
    assert counters == [(1, {"bytes": 100}), (2, {"bytes": 900})]


BROKEN = {
    "crossing": [{"ph": "X", "ts": 0, "dur": 10}, {"ph": "X", "ts": 5, "dur": 10}],
    "negative-pid": [{"ph": "X", "ts": 0, "dur": 1, "pid": -1}],
    "no-duration": [{"ph": "X", "ts": 0}],
    "half-a-flow": [{"ph": "X", "ts": 0, "dur": 9}, {"ph": "s", "ts": 1, "id": 1}],
    "flow-in-nothing": [{"ph": "s", "ts": 1, "id": 1}, {"ph": "f", "ts": 2, "id": 1, "bp": "e"}],
    "unread-metadata": [{"ph": "M", "name": "color"}],
}


@pytest.mark.parametrize("events", BROKEN.values(), ids=BROKEN.keys())
def test_the_importer_would_not_take(events):
    assert problems([{"name": "a", "cat": "c", "pid": 1, "tid": 1, "args": {}, **event} for event in events])
