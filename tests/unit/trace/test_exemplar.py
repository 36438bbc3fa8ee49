"""One step cut out: complete, small, stable."""

import gzip
import hashlib
import json
import sys

import pytest

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace import Category, exemplar, loads, read, read_exemplar
from unit.trace.chrome import DATA, each_recording, each_trace_file, kernel, launch, step, text, trace, x
from unit.trace.test_writer import assert_nests

EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python"}},
    step(4, 0, 100),
    x("aten::before", 10, 20),
    launch(12, 2, 900),
    kernel("late", 150, 30, 900),
    step(5, 100, 60.5),
    x("aten::mm", 110.25, 20, **{"Input Dims": [[2, 2]], "Input type": ["float"], "External id": 5, "Ev Idx": 1}),
    launch(112, 2, 901),
    x("module.py(3): forward", 105, 40, "python_function"),
    x("autograd::engine::evaluate_function: MmBackward0", 135, 10, tid=333),
    launch(137, 2, 902, tid=333),
    kernel("gemm", 170, 40, 901, grid=[1, 2, 3], block=[4, 5, 6], **{"blocks per SM": 0.1}),
    kernel("gemm_backward", 190, 40, 902, stream=20),
    kernel("orphan", 200, 5, 77_777),
    {**kernel("without correlation", 205, 5, 0), "args": {"stream": 7}},
    x("ProfilerStep#5", 170, 60, "gpu_user_annotation", pid=0, tid=7),
    x("Buffer Flush", 120, 5, "overhead", pid=-1, tid=0),
    launch(141, 3, 55, name="cudaDeviceSynchronize"),
    step(6, 160.5, 10),
    x("aten::after", 161, 2),
]


def _cut(events=EVENTS, which=1, **options):
    data = exemplar(trace(*events), which, **options)
    assert data is not None
    return data


def test_what_a_step_launched_is_in_and_nothing_else():
    found = loads(_cut())
    names = [found.name_of(row) for row in range(len(found))]
    assert sorted(names) == [
        "ProfilerStep#5",
        "aten::mm",
        "autograd::engine::evaluate_function: MmBackward0",
        "cudaDeviceSynchronize",
        "cudaLaunchKernel",
        "cudaLaunchKernel",
        "gemm",
        "gemm_backward",
    ]
    starts = dict(zip(names, found.start.tolist(), strict=True))
    assert starts["ProfilerStep#5"] == 0
    assert starts["aten::mm"] == 10_250
    assert starts["gemm"] == 70_000
    assert found.duration[names.index("ProfilerStep#5")] == 60_500


def test_ids_are_small_and_named():
    found = loads(_cut())
    assert found.process_names == {0: "host", 1: "device 0"}
    assert found.thread_names == {
        (0, 0): "step",
        (0, 1): "thread 1",
        (1, 7): "stream 7",
        (1, 20): "stream 20",
    }
    assert {(pid, tid) for pid, tid in zip(found.pid.tolist(), found.tid.tolist(), strict=True)} == set(
        found.thread_names
    )


def test_args_are_reduced_and_correlations_counted_from_one():
    found = loads(_cut())
    args = {found.name_of(row): found.args(row) for row in range(len(found))}
    assert args["aten::mm"] == {"Input Dims": [[2, 2]], "Input type": ["float"]}
    assert args["gemm"] == {"correlation": 1, "stream": 7, "grid": [1, 2, 3], "block": [4, 5, 6]}
    assert args["gemm_backward"] == {"correlation": 2, "stream": 20}
    assert args["cudaDeviceSynchronize"] == {}, "it joins nothing"
    assert found.correlation[found.rows(Category.CUDA_RUNTIME)].tolist() == [1, 2, -1]


def test_a_rank_keeps_what_ties_its_step_to_those_of_others():
    of_call = {"Process Group Name": "0", "Seq": 3, "Collective name": "allreduce", "In msg nelems": 8, "rest": 1}
    operator = {"Concrete Inputs": ["", "sum", "0"], "Input Dims": [[8]]}
    events = [
        *EVENTS,
        x("_c10d_functional::all_reduce", 130, 4, **operator),
        x("aten::add", 135, 1, **operator),
        launch(131, 2, 950),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 180, 9, 950, **of_call),
    ]
    job = {"rank": 1, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    whole = loads(text(events, baseTimeNanoseconds=10**18, distributedInfo=job, host_name="lab-7", traceName="/a/b"))

    found = loads(exemplar(whole, 1, of_rank=True))
    args = {found.name_of(row): found.args(row) for row in range(len(found))}
    assert args["_c10d_functional::all_reduce"] == operator
    assert args["aten::add"] == {"Input Dims": [[8]]}
    kept = {name: value for name, value in of_call.items() if name != "rest"}
    assert args["ncclDevKernel_AllReduce_Sum_f32_RING_LL"] == {"correlation": 2, "stream": 7, **kept}
    # The step begins 100 us after the trace's base.
    assert found.base_ns == 10**18 + 100_000
    assert found.metadata["distributedInfo"] == job
    # It may be committed: of the host's name only whether it is another rank's can be told.
    assert found.metadata["host_name"] == hashlib.sha256(b"lab-7").hexdigest()[:8]
    assert "traceName" not in found.metadata
    # Every other exemplar has none of it.
    alone = loads(exemplar(whole, 1))
    assert not {"distributedInfo", "host_name", "baseTimeNanoseconds"} & set(alone.metadata)
    (row,) = alone.matching(lambda name: name.startswith("nccl"), alone.device_rows())
    assert alone.args(row) == {"correlation": 2, "stream": 7}


@pytest.mark.parametrize(
    "name", ["gloo:all_reduce", "_c10d_functional::wait_tensor", "void vllm::cross_device_reduce_1stage<float, 2>(int)"]
)
def test_collectives_are_the_last_that_the_limit_of_a_ranks_exemplar_drops(name):
    events = [step(0, 0, 10_000), *(x(f"aten::op{number}", 10 * number, 9) for number in range(500))]
    events += [x(name, 6000 + 10 * number, 1, "user_annotation", tid=5) for number in range(20)]
    for of_rank, left in ((True, 20), (False, 0)):
        found = loads(exemplar(trace(*events), 0, limit=1500, of_rank=of_rank))
        names = [found.name_of(row) for row in range(len(found))]
        assert names.count(name) == left
        assert 1 + left < len(names) < 500


def test_the_step_is_an_index_from_zero():
    found = trace(*EVENTS)
    for which, name in enumerate(["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]):
        data = exemplar(found, which)
        assert data is not None
        assert loads(data).metadata["perfdl"]["step"] == name
    assert exemplar(found, 3) is None
    assert exemplar(found, -1) is None
    assert exemplar(trace(x("op", 1, 1)), 0) is None


def test_equal_steps_of_different_processes_give_equal_bytes():
    def elsewhere(event):
        ids = {100: 4711, 333: 98_765, -1: -1, 0: 0, 7: 7, 20: 20}
        event = {**event, "pid": ids[event["pid"]], "tid": ids[event["tid"]]}
        if "ts" in event:
            event["ts"] = event["ts"] + 1_000_000
        if "correlation" in event.get("args", {}):
            event["args"] = {**event["args"], "correlation": event["args"]["correlation"] * 3 + 1}
        return event

    assert _cut([elsewhere(event) for event in EVENTS]) == _cut()


def test_what_overlaps_on_a_stream_is_still_there_and_nests():
    events = [*EVENTS, launch(114, 1, 903), kernel("programmatic", 208, 10, 903)]
    data = _cut(events)
    assert_nests(gzip.decompress(data))
    assert "programmatic" in loads(data).names


def test_a_device_event_without_a_numeric_stream_or_device():
    events = [step(1, 0, 10), launch(1, 1, 5), {**kernel("k", 5, 1, 5), "pid": "GPU", "tid": "queue"}]
    found = loads(_cut(events, 0))
    assert found.thread_names[1, 2**31] == "stream queue"
    assert found.process_names[1] == "device GPU"


def test_a_host_process_whose_id_is_a_devices():
    events = [
        step(1, 0, 10, pid=0, tid=7),
        x("op", 1, 1, pid=0, tid=7),
        launch(2, 1, 5),
        kernel("k", 5, 1, 5),
    ]
    found = loads(_cut(events, 0))
    threads = {found.name_of(row): (found.pid[row], found.tid[row]) for row in range(len(found))}
    assert threads == {"ProfilerStep#1": (0, 0), "op": (0, 0), "cudaLaunchKernel": (0, 1), "k": (1, 7)}


def _kept(data):
    return loads(data).metadata["perfdl"]


@pytest.mark.long
def test_above_the_limit_args_go_first_then_the_shortest_events():
    events = [step(1, 0, 10_000)]
    for number in range(300):
        shape = {"Input Dims": [[number, number * 7 % 101]], "Input type": ["float"], "grid": [number, 1, 1]}
        events.append(
            x(f"aten::op{number * 7919 % 1000}", 10 + number * 20, round(1 + number * 37 % 300 / 100, 2), **shape)
        )
    everything = _cut(events, 0)
    assert _kept(everything) == {"dropped_args": [], "dropped_events": 0, "step": "ProfilerStep#1"}
    limit = len(everything)
    seen = []
    while limit > 400:
        data = _cut(events, 0, limit=limit)
        assert len(data) <= limit
        seen.append(_kept(data))
        limit = len(data) * 4 // 5
    dropped = [note["dropped_events"] for note in seen]
    assert dropped == sorted(dropped)
    assert all(note["dropped_args"] for note in seen[1:])
    assert all("Input Dims" in note["dropped_args"] for note in seen if note["dropped_events"])
    data = _cut(events, 0, limit=1500)
    found = loads(data)
    count = _kept(data)["dropped_events"]
    assert 0 < count < 300
    assert len(found) == 301 - count
    original = sorted((event["dur"] for event in events), reverse=True)
    assert sorted((found.duration / 1000).tolist(), reverse=True) == original[: len(found)]
    larger = _cut(events, 0, limit=len(data) - 1)
    assert _kept(larger)["dropped_events"] == count + 1, "no more is dropped than must be"


def test_the_step_is_never_dropped():
    found = loads(_cut(limit=1))
    assert [found.name_of(row) for row in range(len(found))] == ["ProfilerStep#5"]


def test_a_step_shorter_than_what_runs_in_it_is_still_kept():
    events = [step(1, 0, 2), x("aten::long", 1, 500), x("aten::longer", 1.5, 900)]
    assert loads(_cut(events, 0, limit=1)).names == ("ProfilerStep#1",)


@each_recording
def test_cuts_of_recordings(path):
    found = loads(exemplar(read(path), 0))
    assert found.findings == ()
    assert len(found.rows(Category.PYTHON_FUNCTION)) == 0
    assert len(found.rows(Category.CPU_OP)) > 100
    assert found.start.min() == 0


def test_the_file_is_json_with_sorted_keys():
    data = json.loads(gzip.decompress(exemplar(read(DATA / "train.json.gz"), 2)))
    assert all(list(event) == sorted(event) for event in data["traceEvents"])


@each_trace_file
def test_cuts_of_public_traces_nest_and_fit(path):
    found = read(path)
    data = exemplar(found, 0, limit=30_000)
    if data is None:
        assert not any(name.startswith("ProfilerStep") for name in found.names)
        return
    assert len(data) <= 30_000
    assert_nests(gzip.decompress(data))


@pytest.mark.parametrize(
    "broken", [b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1},,]}', b'{"traceEvents": [', b"{]", b"[" * 9000]
)
def test_an_exemplar_that_is_no_json_is_refused_and_not_repaired(tmp_path, broken, monkeypatch):
    module = sys.modules["pytest_perfdl.trace.exemplar"]
    monkeypatch.setattr(module, "loads", lambda *_: pytest.fail("only a recording is repaired"))
    path = tmp_path / "a.trace.json.gz"
    path.write_bytes(gzip.compress(broken))
    with pytest.raises(TraceError, match=r"a\.trace\.json\.gz is damaged: ") as error:
        read_exemplar(path)
    assert "\n" not in str(error.value)
