"""What `perfdl trace` says of the ranks of a job, on the terminal, on the page and in one Chrome trace."""

import dataclasses
import gzip
import json
import re
import shutil

import pytest

from pytest_perfdl.analysis.ranks import activity, compare
from pytest_perfdl.analysis.ranks.meetings import CLASSES, NOTHING, timeline
from pytest_perfdl.cli import main
from pytest_perfdl.report.ranks import TELLING, choose_telling, wait_table
from pytest_perfdl.report.trace import chrome, terminal
from pytest_perfdl.report.trace.html import chosen_steps, rank_chart
from pytest_perfdl.report.trace.ranks import bucket_names, choose_reported, verdict, waits_per_step
from pytest_perfdl.trace import read
from unit.report.importer import problems
from unit.report.trace.jobs import write_job
from unit.trace.chrome import DATA


@pytest.fixture
def job(tmp_path):
    return write_job(tmp_path / "job")


def figures(files):
    return compare([activity(read(file)) for file in files])


def test_the_straggler_is_said_first(job):
    found = figures(job)
    # 300 us more than the others, of 1000 us; rank 1 is slow in all steps, so there is no step since which it is.
    assert verdict(found) == (
        "Rank 1 of 3 is a straggler: it computes longer than the other ranks.",
        "Without that a step would take 300.0 µs less (30.0% of 1.000 ms).",
    )
    said = terminal.across_ranks(found, 10, 120)
    assert said.startswith("Rank 1 of 3 is a straggler: it computes longer than the other ranks. Without that")
    row = next(line for line in said.splitlines() if line.startswith("  rank 0 "))
    assert "300.0 µs  rank 1" in row
    assert re.search(r"^  rank 1 \* ", said, re.MULTILINE)


def test_balanced_ranks_have_no_straggler(tmp_path):
    found = figures(write_job(tmp_path, slow=None))
    assert verdict(found) == (
        "None of the 3 ranks is a straggler: none is slower than the others step after step.",
        "",
    )
    assert wait_table([0, 1, 2], waits_per_step(found), None) is None


def test_ranks_without_common_collectives_are_not_judged(tmp_path):
    files = write_job(tmp_path, size=2)
    only = tmp_path / "none.json"
    events = json.loads(files[1].read_bytes())
    events["traceEvents"] = [one for one in events["traceEvents"] if "nccl" not in one["name"]]
    only.write_text(json.dumps(events))
    assert verdict(figures([files[0], only])) == (
        "Whether one of the 2 ranks is slower than the others is unknown: no collective was found on several of them.",
        "",
    )


def test_ranks_with_few_steps_in_common_are_not_judged(tmp_path):
    """What is slower in each of two steps may be a hiccup, or not: see `LEAST_STEPS`."""
    found = figures(write_job(tmp_path))
    few = dataclasses.replace(found, straggler=None, step_numbers=found.step_numbers[:2])
    assert verdict(few)[0] == (
        "Whether one of the 3 ranks is slower than the others is unknown: they have only 2 steps in common."
    )
    none = dataclasses.replace(few, step_numbers=())
    assert verdict(none)[0].endswith("is unknown: they have no steps in common.")


def test_what_ranks_do_when_is_drawn_on_one_clock(job):
    traces = [read(file) for file in job]
    activities = [activity(trace) for trace in traces]
    found = compare(activities)
    drawn = timeline(activities, found, (1,), 100)
    bin_ns = (drawn.end_ns - drawn.start_ns) / 100

    def time(place, name):
        return float((drawn.codes[place] == CLASSES.index(name)).sum()) * bin_ns

    assert [round(time(place, "compute"), -4) for place in range(3)] == [300_000, 600_000, 300_000]
    assert [round(time(place, "waiting"), -4) for place in range(3)] == [300_000, 0, 300_000]
    assert [round(time(place, "communication"), -4) for place in range(3)] == [290_000] * 3
    # All began together on the first rank's clock, though their own are 50 and 100 us ahead.
    assert drawn.opens_ns.max() - drawn.opens_ns.min() == 0
    # The launch's 10 us, and the 100 us between the collective's end and the next step.
    assert [CLASSES[code] for code in drawn.codes[0][[0, 1, 40, 99]]] == ["host", "compute", "waiting", "host"]
    assert (drawn.start_ns, drawn.end_ns) == (1_000_000, 2_000_000)
    assert NOTHING not in drawn.codes


def test_the_chart_has_a_row_for_each_rank_and_marks_the_straggler(job):
    activities = [activity(read(file)) for file in job]
    found = compare(activities)
    steps = chosen_steps(found)
    assert steps == found.step_numbers
    chart = rank_chart(timeline(activities, found, steps, 200), found, [0, 1, 2])
    assert re.findall(r">(▸ )?rank (\d)<", str(chart.names)) == [("", "0"), ("▸ ", "1"), ("", "2")]
    assert {f"of-{name}" for name in ("compute", "waiting", "communication")} <= set(
        re.findall(r'class="([\w-]+)"', str(chart.svg))
    )
    assert str(chart.svg).count(">step ") == len(steps)
    few = rank_chart(timeline(activities, found, steps, 200), found, [1])
    assert "1 of 3 ranks are shown" in few.note


def test_waits_are_a_table_with_numbers_and_shades():
    table = wait_table([0, 1], [[0.0, 12_340_000.0], [30_000.0, 0.0]], 1)
    assert (table.unit, table.columns) == ("ms", (("rank 0", False), ("rank 1", True)))
    assert [list(row.cells) for row in table.rows] == [
        [("", 0), ("12.3", 5)],
        [("0.03", 0), ("", 0)],
    ]
    assert [row.total for row in table.rows] == ["12.3", "0.03"]


def test_the_table_of_waits_of_many_ranks_adds_up():
    count = 64
    waits = [[0.0 if i == j else 5e6 if j == 9 else 1e3 * (i + 1) for j in range(count)] for i in range(count)]
    table = wait_table(range(count), waits, 9)
    assert table.columns == (("rank 9", True), ("63 others", False))
    assert len(table.rows) == TELLING + 1
    assert table.left_out == count - TELLING
    assert any(row.name == "rank 9" and row.marked for row in table.rows)
    last = next(row for row in table.rows if row.name == "rank 63")
    # 62 others (without itself and rank 9) at 64 us each.
    assert [text for text, _ in last.cells] == ["5.00", f"{62 * 64e3 / 1e6:.2f}"]
    assert last.total == f"{5 + 62 * 64e3 / 1e6:.2f}"
    mean = table.rows[-1]
    assert mean.name == f"mean of the {count - TELLING} others"


def test_of_many_ranks_the_telling_ones_are_shown():
    own = [100.0 + place for place in range(40)]
    waits = [[float(place == 7)] * 40 for place in range(40)]
    shown = choose_telling(own, waits, 20, 6)
    assert len(shown) == 6
    assert {20, 39, 7, 0} <= set(shown)
    assert shown == sorted(shown)
    assert choose_telling(own[:3], [row[:3] for row in waits[:3]], None, 6) == [0, 1, 2]


def test_few_of_many_ranks_are_reported_in_full(job):
    found = figures(job)
    assert choose_reported(found, 2) == [1, 0]
    assert choose_reported(found, 3) == [0, 1, 2]


def test_collectives_of_some_ranks_name_them(job):
    found = figures(job)
    assert bucket_names(found.buckets, found) == ["all_reduce 1"]


def merged(tmp_path, files, name="all.json", *more):
    path = tmp_path / name
    assert main(["trace", *map(str, files), "--trace", str(path), *more]) == 0
    packed = path.read_bytes()
    return json.loads(gzip.decompress(packed) if name.endswith(".gz") else packed)["traceEvents"]


def named(events):
    return {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}


def test_one_trace_has_a_process_for_each_rank_on_one_clock(job, tmp_path, capsys):
    events = merged(tmp_path, reversed(job), "all.json.gz")
    assert problems(events) == []
    assert [name.split(":")[0] for _, name in sorted(named(events).items())] == ["rank 0", "rank 1", "rank 2"]
    reduces = [one for one in events if one["name"].startswith("ncclDev")]
    ends = {}
    for one in reduces:
        ends.setdefault(one["args"]["collective across ranks"], set()).add(round(one["ts"] + one["dur"], 3))
    assert len(ends) == 4
    assert all(len(each) == 1 for each in ends.values()), "ends of a collective on all ranks"
    assert {one["args"]["last to start"] for one in reduces} == {"rank 1"}
    # What ties events of a rank to each other is another rank's nowhere.
    correlations = [
        {one["args"]["correlation"] for one in events if one["pid"] == pid and one.get("cat") == "cuda_runtime"}
        for pid in (0, 1, 2)
    ]
    assert len(set.union(*correlations)) == sum(map(len, correlations)) == 24


def test_one_trace_shows_who_waits_for_whom(job, tmp_path, capsys):
    events = merged(tmp_path, job)
    waits = [(one["pid"], one["name"], one["dur"]) for one in events if one.get("cat") == "wait" and one["ph"] == "X"]
    assert sorted(waits) == sorted([(pid, "wait for rank 1", 300.0) for pid in (0, 2) for _ in range(4)])
    arrows = [one for one in events if one.get("cat") == "wait" and one["ph"] in "sf"]
    assert {(one["ph"], one["pid"]) for one in arrows} == {("s", 1), ("f", 0), ("f", 2)}
    assert len(arrows) == 2 * 8
    # From each launch to its kernel.
    assert sum(one["ph"] == "s" and one.get("cat") == "launch" for one in events) == 3 * 8


def test_one_trace_of_gloo_ranks(tmp_path, capsys):
    events = merged(tmp_path, sorted(DATA.glob("gloo_rank*.json.gz")))
    assert problems(events) == []
    assert sorted(named(events)) == [0, 1]
    for place, path in enumerate(sorted(DATA.glob("gloo_rank*.json.gz"))):
        own = [one for one in events if one["pid"] == place and one["ph"] == "X" and one.get("cat") != "wait"]
        assert len(own) == len(read(path))


def test_one_trace_has_the_selected_steps_only(job, tmp_path, capsys):
    events = merged(tmp_path, job, "two.json", "--select", "step=1-2")
    assert {one["name"] for one in events if one["name"].startswith("ProfilerStep")} == {
        "ProfilerStep#1",
        "ProfilerStep#2",
    }


def test_one_trace_at_a_time_is_in_memory(job, tmp_path):
    activities = [activity(read(file)) for file in job]
    path, seen = tmp_path / "all.json", []

    def traces():
        for file in job:
            # What earlier ranks have is being written when the next is read.
            seen.append(file.name)
            yield read(file)

    begun = chrome._events(compare(activities), traces(), 0, [])
    next(begun)
    assert seen == ["rank0.json"]
    chrome.write_merged(path, compare(activities), activities, map(read, job))
    assert named(json.loads(path.read_bytes())["traceEvents"]).keys() == {0, 1, 2}


def test_a_trace_that_cannot_be_written_leaves_the_old_one(job, tmp_path, capsys):
    path = tmp_path / "all.json"
    path.write_text("old")
    broken = [*job[:2], tmp_path / "broken.json"]
    shutil.copy(job[2], broken[2])
    activities = [activity(read(file)) for file in broken]

    def traces():
        yield from map(read, broken[:2])
        raise OSError(28, "No space left on device")

    with pytest.raises(chrome.ReportError, match="cannot be written: No space left"):
        chrome.write_merged(path, compare(activities), activities, traces())
    assert path.read_text() == "old"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["all.json", "broken.json", "job"]


@pytest.mark.parametrize(
    "more, said",
    [
        ([], "--trace needs the traces of several ranks: a single trace is a Chrome trace already"),
        (["--select", "rank=1"], "--trace needs several ranks: --select leaves one"),
    ],
)
def test_one_rank_is_not_merged(job, tmp_path, capsys, more, said):
    files = job if more else job[:1]
    assert main(["trace", *map(str, files), "--trace", str(tmp_path / "all.json"), *more]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "all.json").exists()


def test_the_page_says_who_waits_for_whom(job, tmp_path, capsys):
    page = tmp_path / "ranks.html"
    assert main(["trace", *map(str, job), "--html", str(page)]) == 0
    html = page.read_text()
    assert "<h1>Rank 1 of 3 is a straggler: it computes longer than the other ranks.</h1>" in html
    assert html.count('<details class="test"') == 3
    row = re.search(r'<tr><th scope="row">rank 0</th>(.*?)</tr>', html)
    assert re.findall(r'class="number wait-(\d)">([^<]*)<', row[1]) == [("0", ""), ("5", "300"), ("0", "0")]
    assert '<svg class="ranks" role="img"' in html


@pytest.mark.long
def test_the_page_of_many_ranks_has_the_traces_of_two(tmp_path, capsys):
    page = tmp_path / "ranks.html"
    files = write_job(tmp_path / "job", size=20, slow=13)
    assert main(["trace", *map(str, files), "--html", str(page)]) == 0
    html = page.read_text()
    assert "Rank 13 of 20 is a straggler" in html
    assert html.count('<details class="test"') == 2
    assert "Below are the traces of 2 of 20 ranks" in html
    assert main(["trace", *map(str, files)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines().count("Add --select rank=N for the report on another rank.") == 1
    assert "8 other ranks: own work" in out
