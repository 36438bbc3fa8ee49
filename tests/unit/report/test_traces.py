"""The traces with all ranks of a side: each rank a process on one clock, in the report and in one made of it again."""

import gzip
import json
from dataclasses import replace

import pytest

from pytest_perfdl.report import html, traces, write_all
from pytest_perfdl.report.ranks import ALIKE, TELLING
from pytest_perfdl.report.terminal import summary_lines
from pytest_perfdl.results.run import Exemplars
from pytest_perfdl.results.run_file import read_run, to_json
from pytest_perfdl.trace import exemplar, read
from unit.report import runs
from unit.report.importer import problems
from unit.report.trace.jobs import write_job
from unit.trace.chrome import DATA

GLOO = tuple(sorted(DATA.glob("gloo_rank*.json.gz")))
STEP = 2


def cut(files, folder, step=STEP):
    """A rank's exemplar beside each other, as their processes leave them in the scratch folder."""
    folder.mkdir()
    paths = tuple(folder / f"{place}.trace.json.gz" for place, _ in enumerate(files))
    for file, path in zip(files, paths, strict=True):
        path.write_bytes(exemplar(read(file), step, of_rank=True))
    return paths


def run_of(folder, files=GLOO, *, verdict="regressed", wanted="regressed", **sides):
    """A run with a test of ranks, of which both sides were measured."""
    ranks = {"base_ranks": cut(files, folder / "base"), "new_ranks": cut(files, folder / "new"), **sides}
    first = [paths[0] for paths in (ranks["base_ranks"] or GLOO, ranks["new_ranks"])]
    one = runs.result(verdict, exemplars=(Exemplars("", *first, **ranks),))
    return runs.run(one, report_dir=folder / "report", traces=wanted)


def events_of(folder, role="ranks"):
    """The events of a report's trace of all ranks."""
    (test,) = json.loads((folder / "run.json").read_bytes())["tests"]
    return json.loads(gzip.decompress((folder / test["traces"][0][role]).read_bytes()))["traceEvents"]


def slices(events, name, pid):
    """Start and end of the slices of a rank, in nanoseconds."""
    own = [one for one in events if (one["ph"], one["name"], one["pid"]) == ("X", name, pid)]
    return sorted((round(one["ts"] * 1000), round((one["ts"] + one["dur"]) * 1000)) for one in own)


def recorded(file, name, since, until):
    """The same in a recording, in nanoseconds since 1970, of what starts in a span."""
    trace = read(file)
    start, end = trace.start + trace.base_ns, trace.end + trace.base_ns
    rows = [row for row in range(len(trace)) if trace.name_of(row) == name and since <= start[row] < until]
    return sorted((int(start[row]), int(end[row])) for row in rows)


def step_of(file):
    """Name, start and end of the step that exemplars show."""
    names = sorted(name for name in read(file).names if name.startswith("ProfilerStep#"))
    ((start, end),) = recorded(file, names[STEP], 0, 2**63)
    return names[STEP], start, end


@pytest.mark.parametrize("role, side", [("ranks", "current"), ("base_ranks", "baseline")])
def test_two_recorded_ranks_are_processes_on_the_clock_of_their_host(tmp_path, role, side):
    write_all(run_of(tmp_path))
    events = events_of(tmp_path / "report", role)
    assert problems(events) == []
    named = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert named == {0: f"rank 0: {side}", 1: f"rank 1: {side}"}
    # The ranks were recorded on one host: the time that both count from is that of the step that starts first.
    steps = [step_of(file) for file in GLOO]
    assert len({name for name, _, _ in steps}) == 1
    origin = min(start for _, start, _ in steps)
    for pid, (file, (step, since, until)) in enumerate(zip(GLOO, steps, strict=True)):
        for name in (step, "aten::addmm", "gloo:all_reduce", "c10d::allreduce_"):
            there = recorded(file, name, since, until)
            assert there, name
            assert slices(events, name, pid) == [(start - origin, end - origin) for start, end in there]


def test_two_recorded_ranks_are_in_the_same_collectives(tmp_path):
    write_all(run_of(tmp_path))
    events = events_of(tmp_path / "report")
    reduces = {}
    for one in events:
        if one["name"] == "gloo:all_reduce":
            reduces.setdefault(one["args"]["collective across ranks"], []).append(one)
    # A layer has 128 * 128 weights and 128 biases; gradients of one layer and of three are a bucket each.
    assert sorted(one["args"]["Input Dims"] for ranks in reduces.values() for one in ranks) == [
        [[16512]],
        [[16512]],
        [[49536]],
        [[49536]],
    ]
    for ranks in reduces.values():
        assert {one["pid"] for one in ranks} == {0, 1}
        assert len({str(one["args"]["Input Dims"]) for one in ranks}) == 1
        # None of an all-reduce can be done before all have started it.
        assert max(one["ts"] for one in ranks) < min(one["ts"] + one["dur"] for one in ranks)


def test_ranks_of_several_hosts_are_aligned_on_the_ends_of_their_collectives(tmp_path):
    # Clocks are 0, 50 and 100 us ahead. Of a step of 1000 us rank 1 computes 600 us from 10 us on, the others 300.
    files = write_job(tmp_path / "job")
    write_all(run_of(tmp_path, files))
    events = events_of(tmp_path / "report")
    assert problems(events) == []
    reduce = next(one["name"] for one in events if one["name"].startswith("ncclDev"))
    for pid in (0, 1, 2):
        slow = 300_000 * (pid == 1)
        assert slices(events, "gemm", pid) == [(10_000, 310_000 + slow)]
        assert slices(events, reduce, pid) == [(310_000 + slow, 900_000)]
        assert slices(events, "ProfilerStep#2", pid) == [(0, 1_000_000)]
    waits = [one for one in events if one.get("cat") == "wait" and one["ph"] == "X"]
    assert sorted(one["pid"] for one in waits) == [0, 2]
    assert {(one["name"], one["ts"], one["dur"]) for one in waits} == {("wait for rank 1", 310.0, 300.0)}


def test_of_many_ranks_the_straggler_and_the_telling_ones_are_in_the_trace(tmp_path):
    files = write_job(tmp_path / "job", size=ALIKE + 4, slow=13)
    write_all(run_of(tmp_path, files))
    shown = {one["pid"] for one in events_of(tmp_path / "report") if one["name"] == "process_name"}
    assert len(shown) == TELLING
    assert 13 in shown


def test_a_report_that_is_made_again_keeps_the_traces(tmp_path):
    first = write_all(run_of(tmp_path))
    again = write_all(read_run(first.json, tmp_path / "again"))
    for role in ("ranks", "base_ranks"):
        assert events_of(tmp_path / "again", role) == events_of(tmp_path / "report", role)
    assert {path.name: path.read_bytes() for path in again.traces} == {
        path.name: path.read_bytes() for path in first.traces
    }
    # And they go with the test, as all of its traces do.
    write_all(runs.run(report_dir=tmp_path / "report"))
    assert list((tmp_path / "report" / "traces").iterdir()) == []


def test_the_page_and_the_terminal_name_the_traces(tmp_path):
    run = run_of(tmp_path)
    page = html.render(run, traces.collect(run))
    (listed,) = to_json(run)["tests"][0]["traces"]
    for role, label in (("ranks", "all current ranks"), ("base_ranks", "all ranks of the baseline")):
        assert f'<a href="{listed[role]}"' in page
        assert f">Download {label} (" in page
    stem = listed["ranks"].removesuffix(".ranks.json.gz")
    assert listed["base_ranks"] == f"{stem}.base-ranks.json.gz"
    assert f"{stem}.*" in "\n".join(line.text for line in summary_lines(run, 1, 120))


@pytest.mark.parametrize("verdict, wanted", [("unchanged", "regressed"), ("regressed", "none")])
def test_there_is_no_trace_of_ranks_where_no_trace_is_wanted(tmp_path, verdict, wanted):
    written = write_all(run_of(tmp_path, verdict=verdict, wanted=wanted))
    assert written.traces == ()
    assert json.loads(written.json.read_bytes())["tests"][0]["traces"] == []


@pytest.mark.long
def test_only_a_side_that_was_measured_has_a_trace_of_ranks(tmp_path):
    run = run_of(tmp_path, base_ranks=())
    assert [path.name.split(".")[1] for path in write_all(run).traces] == ["base", "new", "diff", "speedscope", "ranks"]


@pytest.mark.parametrize(
    "data", [None, b"not gzip", gzip.compress(b'{"traceEvents": 7}')], ids=["gone", "no gzip", "?"]
)
def test_a_rank_that_cannot_be_read_costs_this_trace_alone(tmp_path, data):
    run = run_of(tmp_path)
    path = run.results[0].exemplars[0].new_ranks[1]
    path.unlink() if data is None else path.write_bytes(data)
    written = write_all(run)
    (problem,) = written.problems
    assert problem.startswith(f"{runs.GPT}: the trace with all current ranks is left out: {path}")
    assert [path.name.split(".")[1] for path in written.traces] == ["base", "new", "diff", "speedscope", "base-ranks"]
    # A report that is made of this one has what is there.
    again = read_run(written.json, tmp_path / "again")
    assert [bool(each.base_ranks) for each in again.results[0].exemplars] == [True]
    assert [each.new_ranks for each in again.results[0].exemplars] == [()]


def test_traces_of_ranks_that_fail_in_an_unforeseen_way_cost_nothing_else(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyError("unforeseen")

    monkeypatch.setattr("pytest_perfdl.report.trace.chrome.merge_ranks", fail)
    written = write_all(run_of(tmp_path))
    assert len(written.traces) == 4
    assert [problem.partition(": ")[2] for problem in written.problems] == [
        f"all {ranks} cannot be combined in one trace: KeyError: 'unforeseen'"
        for ranks in ("ranks of the baseline", "current ranks")
    ]


def test_a_large_trace_of_ranks_is_not_copied_from_another_report(tmp_path):
    first = write_all(run_of(tmp_path))
    (path,) = (path for path in first.traces if path.name.endswith(".ranks.json.gz"))
    path.write_bytes(b"\0" * (4 * 2**20 + 1))
    written = write_all(read_run(first.json, tmp_path / "again"))
    assert not any(each.name == path.name for each in written.traces)
    assert "larger than 4 MiB" in written.problems[0]


def test_a_trace_of_ranks_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "ALL_RANKS", replace(traces.ALL_RANKS, text=10_000))
    written = write_all(run_of(tmp_path))
    assert len(written.traces) == 4
    assert len(written.problems) == 2
