"""Reading: what a file of any age becomes, and the one line said about what cannot be read."""

import gc
import gzip
import json

import msgspec
import numpy as np
import pytest

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace import Category, loads, read
from unit.trace.chrome import DATA, kernel, launch, memory, step, text, trace, x


def test_columns_of_a_small_trace():
    found = trace(
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "args": {"name": "main"}},
        step(3, 10.5, 100),
        x("aten::mm", 12.001, 3.25, **{"External id": 9, "Input Dims": [[2, 3], [3, 4]]}),
        launch(13, 1, 77),
        kernel("gemm", 20, 5, 77),
        {"ph": "s", "id": 77, "cat": "ac2g", "name": "ac2g", "pid": 100, "tid": 100, "ts": 13},
        memory(14, 512, Addr=64, **{"Total Allocated": 1024, "Total Reserved": 2048}),
        baseTimeNanoseconds=1_700_000_000_000_000_000,
        deviceProperties=[{"id": 0, "name": "NVIDIA H100"}],
    )
    assert len(found) == 4
    assert found.start.tolist() == [10_500, 12_001, 13_000, 20_000]
    assert found.duration.tolist() == [100_000, 3_250, 1_000, 5_000]
    assert found.end.tolist() == [110_500, 15_251, 14_000, 25_000]
    assert [found.name_of(row) for row in range(4)] == ["ProfilerStep#3", "aten::mm", "cudaLaunchKernel", "gemm"]
    assert found.category.tolist() == [
        Category.USER_ANNOTATION,
        Category.CPU_OP,
        Category.CUDA_RUNTIME,
        Category.KERNEL,
    ]
    assert found.pid.tolist() == [100, 100, 100, 0]
    assert found.tid.tolist() == [100, 100, 100, 7]
    assert found.correlation.tolist() == [-1, -1, 77, 77]
    assert found.external_ids(np.arange(4)).tolist() == [-1, 9, -1, -1]
    assert found.args(1)["Input Dims"] == [[2, 3], [3, 4]]
    assert found.base_ns == 1_700_000_000_000_000_000
    assert found.metadata["deviceProperties"][0]["name"] == "NVIDIA H100"
    assert "traceEvents" not in found.metadata
    assert found.process_names == {100: "python"}
    assert found.thread_names == {(100, 100): "main"}
    assert found.memory.time.tolist() == [14_000]
    assert (found.memory.bytes[0], found.memory.allocated[0], found.memory.reserved[0]) == (512, 1024, 2048)
    assert found.findings == ()


def test_rows_come_by_start_then_longest_then_file_order():
    found = trace(x("late", 5, 1), x("child", 1, 2), x("parent", 1, 9), x("twin", 1, 2), kernel("k", 0, 1, 1))
    assert [found.name_of(row) for row in found.rows(Category.CPU_OP)] == ["parent", "child", "twin", "late"]
    assert [found.name_of(row) for row in found.rows(Category.KERNEL, Category.CPU_OP)][:2] == ["k", "parent"]


def test_gzip_is_recognized_by_content_not_name(tmp_path):
    data = text([x("op", 1, 2)])
    (tmp_path / "plain.json.gz").write_bytes(data)
    (tmp_path / "packed.json").write_bytes(gzip.compress(data))
    assert len(read(tmp_path / "plain.json.gz")) == len(read(str(tmp_path / "packed.json"))) == 1
    assert read(tmp_path / "packed.json").source == str(tmp_path / "packed.json")


def test_a_list_without_a_top_level_object_is_a_trace():
    found = loads(b"\n " + json.dumps([x("op", 1, 2)]).encode())
    assert found.start.tolist() == [1000]
    assert found.metadata == {}
    assert found.base_ns == 0


def test_a_trace_of_2021():
    annotation = {"cat": "Operator", "pid": 5, "tid": "5"}
    found = trace(
        x("ProfilerStep#4", 1623142623460172, 50, **annotation),
        x("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1623142623460173, 5, **annotation),
        x("Optimizer.step#SGD.step", 1623142623460180, 5, **annotation),
        x("aten::add", 1623142623460181, 2, **annotation),
        x("cudaLaunchKernel", 1623142623460182, 1, cat="Runtime", pid=5, tid="5", correlation=3),
        x("add", 1623142623460185, 0, cat="Kernel", pid=0, tid="stream 7", correlation=3, **{"external id": 8}),
        x("Memcpy HtoD (Pageable -> Device)", 1623142623460186, 3, cat="Memcpy", pid=0, tid="stream 7"),
        x("Memset (Device)", 1623142623460189, 1, cat="Memset", pid=0, tid="stream 7"),
        {"ph": "i", "name": "[memory]", "pid": 5, "tid": 5, "ts": 1623142623460181, "args": {"Bytes": 4}},
    )
    expected = [Category.USER_ANNOTATION] * 3
    expected += [Category.CPU_OP, Category.CUDA_RUNTIME, Category.KERNEL, Category.GPU_MEMCPY, Category.GPU_MEMSET]
    assert found.category.tolist() == expected
    assert found.start[0] == 1623142623460172_000
    assert found.tid.tolist() == [5, 5, 5, 5, 5, 7, 7, 7]
    assert found.correlation.tolist() == [-1, -1, -1, -1, 3, 3, -1, -1]
    assert found.external_ids(np.array([5])).tolist() == [8]
    assert found.memory.tid.tolist() == [5], "the same thread, written once as text and once as a number"
    assert found.memory.allocated.tolist() == [-1]


def test_operators_of_today_are_not_mistaken_for_annotations():
    found = trace(x("Optimizer.step#SGD.step", 1, 1))
    assert found.category.tolist() == [Category.CPU_OP]


def test_text_ids_are_interned_apart_from_numbers():
    found = trace(
        x("span", 1, 1, "Trace", pid="Spans", tid="PyTorch Profiler"),
        x("span", 1, 1, "Trace", pid="Spans", tid=-1),
        x("big", 1, 1, "Trace", pid=2**64 - 1, tid=0),
    )
    assert found.pid[0] == found.pid[1] != found.tid[0]
    assert [found.label(number) for number in found.pid.tolist()] == ["Spans", "Spans", str(2**64 - 1)]
    assert found.label(int(found.tid[0])) == "PyTorch Profiler"
    assert found.tid[1] == -1
    assert found.label(4242) == "4242"


def test_unknown_categories_and_phases_are_kept_out_of_the_way():
    found = trace(
        x("later", 1, 1, "quantum_kernel"),
        x("none", 2, 1, ""),
        {"ph": "C", "name": "counter", "pid": 1, "tid": 1, "ts": 5, "args": {"a": 1}},
        {"ph": "?", "name": "unheard of", "ts": 5},
        {"ph": "b", "name": "begin", "ts": 5},
        {"ph": "b", "name": "begin", "ts": 5},
        {"ph": "X", "name": "no category", "pid": 1, "tid": 1, "ts": 3, "dur": 1},
    )
    assert [found.categories[code] for code in found.category] == ["quantum_kernel", "", ""]
    assert found.category[1] == Category.NONE
    assert found.args(2) == {}
    assert found.findings == ("1 event of phase '?' was ignored", "2 events of phase 'b' were ignored")


def test_odd_events_are_said_and_the_rest_is_kept():
    events = [
        x("good", 1, 2),
        {"ph": "X", "name": "no duration", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 5},
        x("backwards", 6, -3),
        {"ph": "X", "name": "no time", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 5},
        x("word", "soon", 1),
        {"ph": "X", "name": ["not", "text"], "ts": 1, "dur": 1},
        17,
        {**memory(1, 1), "ts": None},
    ]
    found = trace(*events)
    assert [found.name_of(row) for row in range(len(found))] == ["good", "no duration", "backwards"]
    assert found.duration.tolist() == [2000, 0, 0]
    assert len(found.memory) == 0
    first = text(events).index(b'{"ph": "X", "name": ["not"')
    assert found.findings == (
        f"2 malformed events were skipped (first at byte {first})",
        "2 events without a valid timestamp were skipped",
        "1 memory event without a valid timestamp was skipped",
        "1 complete event has no duration, which was read as 0",
        "1 event has a negative duration, which was read as 0",
    )


def test_args_that_do_not_fit_do_not_harm_their_neighbors():
    found = trace(
        launch(1, 1, 5),
        {**launch(2, 1, 0), "args": None},
        {**launch(3, 1, 0), "args": {"correlation": "six"}},
        {key: value for key, value in launch(4, 1, 0).items() if key != "args"},
        {**launch(5, 1, 0), "args": [1]},
        launch(6, 1, 7),
    )
    assert found.correlation.tolist() == [5, -1, -1, -1, -1, 7]
    assert [found.args(row) for row in (1, 3, 4)] == [{}, {}, {}]


def test_whole_numbers_however_they_are_written():
    """As by tools that read a trace into a table, whose empty cells make floats of integers, and write it again."""
    written = [
        launch(number, 1, 0) | {"args": {"correlation": value}} for number, value in enumerate((7, 7.0, "7", 7.5))
    ]
    assert trace(*written).correlation.tolist() == [7, 7, 7, -1]


class _Unfit(msgspec.Struct):
    correlation: str = "none"


def test_decoding_args_into_a_struct_that_does_not_fit_yields_its_defaults():
    found = trace(launch(1, 1, 5), x("op", 2, 1))
    assert [args.correlation for args in found.decode_args([0, 1], _Unfit)] == ["none", "none"]


def test_an_empty_trace_is_a_trace():
    found = trace()
    assert len(found) == len(found.memory) == 0
    assert found.rows(Category.CPU_OP).tolist() == []


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(TraceError, match=r"absent\.json cannot be read: No such file or directory"):
        read(tmp_path / "absent.json")
    with pytest.raises(TraceError, match=r"cannot be read: Is a directory"):
        read(tmp_path)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled):
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        trace(x("op", 1, 2))
        assert gc.isenabled() is enabled
        with pytest.raises(TraceError):
            loads(b"?")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_a_recording_of_todays_torch():
    found = read(DATA / "train.json.gz")
    names = {found.name_of(row) for row in found.rows(Category.USER_ANNOTATION)}
    assert {"ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3", "forward", "perfdl.setup"} <= names
    assert "aten::addmm" in {found.name_of(row) for row in found.rows(Category.CPU_OP)}
    assert found.findings == ()
    assert found.base_ns > 0
    stack = read(DATA / "stack.json.gz")
    assert len(stack.rows(Category.PYTHON_FUNCTION)) > 0
    assert len(read(DATA / "memory.json.gz").memory) > 0
