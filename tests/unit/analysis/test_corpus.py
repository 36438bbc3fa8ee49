"""Every public trace against the slow reference, to the nanosecond, and against published figures."""

import statistics

import pytest

from pytest_perfdl.analysis import memory_figures, profile_tables
from pytest_perfdl.analysis.account.accounts import device_accounts
from pytest_perfdl.analysis.account.signatures import step_signatures
from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.overview.device import communication_overlap, device_figures
from pytest_perfdl.analysis.overview.findings import trace_integrity
from pytest_perfdl.analysis.overview.tables import kernel_table
from pytest_perfdl.trace import Category, read
from unit.analysis.reference import Reference, clip, length, subtract_sorted, union
from unit.trace.chrome import corpus_file, name_of, trace_files


@pytest.fixture(scope="module", params=trace_files(), ids=name_of)
def path(request):
    return request.param


@pytest.fixture(scope="module")
def trace(path):
    return read(path)


@pytest.fixture(scope="module")
def tables(trace):
    return profile_tables(trace)


@pytest.fixture(scope="module")
def reference(path):
    return Reference(path.read_bytes())


def test_windows(trace, reference):
    windows = steps_of(trace).windows
    assert [(window.host_start, window.host_end) for window in windows] == [
        (step["start"], step["end"]) for step in reference.steps
    ]
    assert [(window.start, window.end) for window in windows] == reference.windows()


def test_operator_self_times_and_counts(tables, reference):
    threads = reference.threads()
    rows = {row.name: row for row in tables.rows if row.kind == "operator"}
    times = reference.self_times(threads if reference.device else threads[:1])
    assert {name: row.ns for name, row in rows.items() if row.ns} == dict(times)
    counts = reference.counts(threads)
    assert list(tables.op_names) == counts
    assert {name: row.count for name, row in rows.items()} == dict(sum(counts, start=type(counts[0])()))
    assert list(tables.counts["ops"]) == [sum(step.values()) for step in counts]


def test_kernel_sums(trace, tables, reference):
    rows = {row.name: (row.count, row.ns) for row in tables.rows if row.kind == "kernel"}
    assert rows == reference.kernel_table()
    integrity = trace_integrity(trace)
    assert integrity.bled_over == 0
    assert integrity.unlinked == sum(reference.launch(event) is None for event in reference.device)
    assert integrity.zero_duration == sum(event["start"] == event["end"] for event in reference.device)


def test_busy_time_and_device_account(trace, tables, reference):
    compute, communication, copies = reference.classes()
    everything = union([*compute, *communication, *copies])
    windows = reference.windows()
    assert list(tables.device_busy_ns) == [length(clip(everything, *window)) for window in windows]
    assert sum(tables.account.values()) == sum(tables.step_ns)
    if not reference.device:
        return
    accounts = device_accounts(trace)
    assert [{name: ns for name, ns in account.items() if ns} for account in accounts] == reference.accounts()
    assert [sum(account.values()) for account in accounts] == [end - start for start, end in windows]


def test_figures_of_the_whole_file(trace, reference):
    figures = device_figures(trace)
    if not reference.device:
        assert figures is None
        return
    expected = reference.device_figures()
    assert {name: getattr(figures, name) for name in expected} == expected
    assert sum(figures.communication_evidence.values()) == reference.kinds.count("communication")


def test_kernels_of_the_whole_file(trace, reference):
    rows = kernel_table(trace)
    assert {(row.name, row.kind): (row.count, row.total_ns) for row in rows} == reference.kernel_sums()
    durations = [event["end"] - event["start"] for event in reference.device if rows and event["name"] == rows[0].name]
    assert not rows or (rows[0].min_ns, rows[0].max_ns) == (min(durations), max(durations))


def test_rows_of_a_cpu_only_trace_add_up_to_its_steps(tables):
    assert sum(tables.account.values()) == sum(tables.step_ns)
    if not tables.on_device:
        assert sum(row.ns for row in tables.rows) == sum(tables.step_ns)


@pytest.mark.corpus
def test_published_overlap_and_busy_share_of_nccl_rank_0():
    path = corpus_file("nccl_rank0")
    trace = read(path)
    overlap = communication_overlap(trace)
    assert overlap is not None
    assert round(overlap * 100, 3) == 14.946
    device = trace.device_rows()
    span = int(trace.end[device].max() - trace.start[device].min())
    assert span == 1_222_847_000
    assert round(covered(trace, device).length / span * 100, 4) == 44.7853
    compute, communication, _ = Reference(path.read_bytes()).classes()
    hidden = length(communication) - length(subtract_sorted(communication, compute))
    assert overlap == hidden / length(communication)


@pytest.mark.corpus
def test_published_times_of_resnet50_with_and_without_workers():
    medians, kernel_ms, tables, signatures = [], [], [], []
    for name in ("resnet50_workers0", "resnet50_workers4"):
        trace = read(corpus_file(name))
        windows = steps_of(trace).windows
        medians.append(round(statistics.median(window.host_ns for window in windows) / 1e6, 1))
        kernels = trace.rows(Category.KERNEL)
        kernel_ms.append(round(int(trace.duration[kernels].sum()) / len(windows) / 1e6, 1))
        tables.append(profile_tables(trace))
        signatures.append(step_signatures(trace))
    assert medians == [176.3, 126.5]
    assert kernel_ms == [98.6, 99.1]
    without, with_workers = (table.account for table in tables)
    assert without["input"] > 340e6 > 10e6 > with_workers["input"], "what the workers took over"
    assert abs(with_workers["compute"] / without["compute"] - 1) < 0.01
    assert len(set(signatures[0])) == 1
    assert len(set(tables[0].counts["ops"])) == 1


@pytest.mark.corpus
def test_published_device_time_of_bert_on_h100():
    tables = profile_tables(read(corpus_file("h100_bert_small")))
    assert tables.device_busy_ns == (309_437,)
    assert tables.counts["kernels"] == (60,)
    assert tables.counts["launches"] == (60,)


@pytest.mark.corpus
def test_stream_0_and_hip_memory_on_mi300():
    trace = read(corpus_file("mi300_bert_small"))
    tables = profile_tables(trace)
    assert tables.counts["kernels"] == (60,)
    memory = trace.memory
    assert set(zip(memory.device_type.tolist(), memory.device_id.tolist(), strict=True)) == {(0, -1), (6, 0)}
    assert memory_figures(trace) is not None


@pytest.mark.corpus
def test_size_of_a_copy_that_only_the_rocm_call_knows():
    assert profile_tables(read(corpus_file("mi250_minitoy"))).counts["h2d_bytes"] == (5120,)


@pytest.mark.corpus
def test_an_operator_with_a_stream_is_not_a_device_event():
    trace = read(corpus_file("triton_compile"))
    assert any("stream" in trace.args(row) for row in trace.rows(Category.CPU_OP))
    assert trace_integrity(trace).device_events == 12


@pytest.mark.corpus
def test_memory_peak_by_hand_on_h100():
    trace = read(corpus_file("h100_bert_small"))
    figures = memory_figures(trace)
    assert figures is not None
    own = trace.memory.device_type == 1
    allocated, first = trace.memory.allocated[own], trace.memory.bytes[own][0]
    assert figures.highest_bytes[0] == max(figures.peak_bytes[0], int(allocated.max() - allocated[0] + first))
