"""No number of a report contradicts another, and what would is found."""

import contextlib
import gzip
import json
import random
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from making import record, timed

from pytest_perfdl.analysis.account.parts import StepParts
from pytest_perfdl.cli import main
from pytest_perfdl.judge.ranks import ProfiledRanks
from pytest_perfdl.judge.round_data import Round, orders
from pytest_perfdl.judge.settle import select_held, settle
from pytest_perfdl.judge.stopping_rule import Gate, Spent
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.judge.work import StepWork
from pytest_perfdl.machine.utilization import OperatorWork
from pytest_perfdl.model.limits import BUILT_IN
from pytest_perfdl.model.record import Call, Row, Series
from pytest_perfdl.model.step_part import Part
from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.report import write_all
from pytest_perfdl.report.terminal import failure_text, summary_lines
from pytest_perfdl.results.verdict import SourceDiff
from unit.report import consistency, printed, runs

TEST = "tests/perf/test_gpt.py::test_train_step"
LINE = "src/model.py(41): attention"
BASE = {"aten::mm": (24, 6_000_000), "aten::_flash": (4, 2_500_000), "aten::add": (12, 700_000)}
NEW = {
    "aten::mm": (36, 7_900_000),
    "aten::bmm": (8, 2_600_000),
    "aten::_softmax": (4, 1_900_000),
    "aten::add": (12, 703_000),
}
IDLE = ("Python and host", 640_000, 810_000)
ROUNDS = 9


def parts(operators, idle_ns, rng):
    """Two profiled steps of these operators and idle time, with a percent of noise."""
    made = [Part("operator", name, module="GPT.blocks.0.attention", line=LINE) for name in operators]
    values = [ns for _, ns in operators.values()] + [idle_ns]
    ns = np.array([[round(value * rng.gauss(1, 0.01)) for _ in range(2)] for value in values])
    count = np.array([[number] * 2 for number, _ in operators.values()] + [[0] * 2])
    classes = ("forward",) * len(made) + ("Python and host",)
    return StepParts(False, ns.sum(axis=0), (*made, Part("idle", IDLE[0])), classes, ns, ns, count)


def times(step_ns, rng):
    """What a process gives for a step of so much."""
    step = step_ns * rng.gauss(1, 0.01)
    return {
        "step_time": step,
        "block_time": step * rng.gauss(1.03, 0.001),
        "step_p50": step * rng.gauss(0.99, 0.001),
        "step_p95": step * rng.gauss(1.08, 0.01),
        "step_p99": step * rng.gauss(1.13, 0.02),
        "cpu_time": step * rng.gauss(1.01, 0.001),
        "throughput": 512 / step * 1e9,
    }


def measured(process, operators, idle_ns, counts):
    """A record of one process for each of these, with counts beside."""
    units = {"throughput": ("higher", "items/s")}
    series = {}
    for name in process[0]:
        better, unit = units.get(name, ("lower", "ns"))
        series[name] = timed(*(each[name] for each in process), better=better, unit=unit)
    for name, (unit, number) in counts.items():
        series[name] = Series("counted", unit, "lower", (number,) * len(process))
    rows = [Row("operator", name, count, (ns,) * len(process)) for name, (count, ns) in operators.items()]
    rows.append(Row("idle", IDLE[0], 20, (idle_ns,) * len(process)))
    total = (sum(row.ns[0] for row in rows),) * len(process)
    return replace(record(calls=(Call("", series, tuple(rows), total),)), test=TEST)


def ranks_of(parts_of_slow, parts_of_quick, *, slow_ms):
    """Two ranks of a round, the second of which does so much more."""
    own, waits = 10.0 + slow_ms, 0.2 + slow_ms
    side = runs.rank_side(
        runs.rank_times(10.0, waits + 0.5, compute=9.0),
        runs.rank_times(own, 0.7, compute=own - 1),
        step=own + 0.7,
        waits=[[0.0, waits], [0.0, 0.0]],
    )
    product = OperatorWork("aten::mm", "[]", "float32", 2, 9_000_000, 10**6, 10**6)
    sort = OperatorWork("aten::sort", "[]", "", 48, round(1e6 * slow_ms))
    work = StepWork(1, (product,)), StepWork(1, (product, sort) if slow_ms else (product,))
    return {"": ProfiledRanks(side, (parts_of_quick, parts_of_slow), work)}


def settled(*, of_ranks=False):
    """A slower step after paired rounds, as a session judges it, with both records; of two ranks the second is slow."""
    rng = random.Random(11)
    # The baseline was recorded on a faster day.
    stored = measured(
        [times(8_800_000, rng) for _ in range(10)],
        BASE,
        IDLE[1],
        {"ops": ("1", 412), "peak_memory": ("B", 20_418_696), "alloc_bytes": ("B", 5_000_000)},
    )
    new = measured(
        [times(14_600_000, rng)],
        NEW,
        IDLE[2],
        {"ops": ("1", 449), "peak_memory": ("B", 52_298_904), "alloc_bytes": ("B", 5_000_000)},
    )
    limits = BUILT_IN
    found = standing(new, stored, (), limits)
    rounds = []
    for order in orders(5, ROUNDS):
        day = rng.gauss(1, 0.03)
        base, head = parts(BASE, IDLE[1], rng), parts(NEW, IDLE[2], rng)
        of_each = {}
        if of_ranks:
            # The first rank, whose breakdown stands for a process, only waits.
            of_each = {"ranks_base": ranks_of(base, base, slow_ms=0.0), "ranks_head": ranks_of(head, base, slow_ms=3.8)}
        rounds.append(
            Round(
                order,
                times(10_000_000 * day, rng),
                times(13_800_000 * day, rng),
                parts_base={"": base},
                parts_head={"": base if of_ranks else head},
                work_base={"": StepWork(1, ())},
                work_head={"": StepWork(1, ())},
                **of_each,
            )
        )
    outcome = Gate(select_held(found, limits)).look(rounds, Spent(300, 300))
    judgement = settle(found, new, stored, stored, outcome.verdicts, rounds, limits)
    changed = (
        "@@ -41,2 +41,2 @@\n def attention(q, k, v):\n-    return flash(q, k, v)\n+    return (q @ k).softmax(-1) @ v"
    )
    return replace(judgement, source_diffs=(SourceDiff("src/model.py", "attention", changed, line=42),)), new, stored


def write(folder, **more):
    """The report of a regressed and an unchanged test, with the terminal's text beside it."""
    judgement, new, stored = settled(**more)
    made = runs.result("regressed", TEST, new=new, base=stored)
    result = replace(runs.with_traces(made, folder), judgement=replace(judgement, test=TEST))
    run = runs.run(result, runs.result("unchanged", "tests/perf/test_vit.py::test_infer"), report_dir=folder / "report")
    written = write_all(run)
    assert not written.problems
    lines = [line.text for verbosity in (1, 0) for line in summary_lines(run, verbosity, 100)]
    title = f"____________ {TEST.rpartition('::')[2]} ____________"
    (folder / "report" / "terminal.txt").write_text("\n".join([title, failure_text(result, run), *lines, ""]))
    with (folder / "report" / "diff.txt").open("w") as file, contextlib.redirect_stdout(file):
        assert main(["diff", str(folder / "report" / "run.json")]) == 0
    return folder / "report"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write(tmp_path_factory.mktemp("consistent"))


@pytest.fixture
def copy(report, tmp_path):
    return shutil.copytree(report, tmp_path / "copy")


def judged_test(folder):
    """The regressed test of a run file."""
    return next(each for each in json.loads((folder / "run.json").read_text())["tests"] if each["id"] == TEST)


def test_the_made_run_is_what_it_should_be(report):
    found = judged_test(report)
    assert found["verdict"] == "regressed"
    step = found["metrics"]["step_time"]
    assert (step["evidence"], step["rounds"], len(step["base_values"])) == ("paired", ROUNDS, ROUNDS)
    assert {"throughput", "step_p99", "cpu_time"} <= found["metrics"].keys()
    assert {cause["name"] for cause in found["blame"]} >= {"aten::bmm", "aten::_flash", "aten::mm"}
    assert found["breakdowns"][0]["rows"]


def test_no_number_contradicts_another(report):
    assert consistency.contradictions(report) == []


def test_no_number_of_a_test_with_ranks_contradicts_another(tmp_path):
    report = write(tmp_path, of_ranks=True)
    found = judged_test(report)
    assert {cause["rank"] for cause in found["blame"]} == {1}
    assert consistency.contradictions(report) == []
    said = " ".join((report / "terminal.txt").read_text().split())
    assert "cause: rank 1 of 2: " in said
    assert (
        "ranks: rank 0 waits 4.000 ms per step for rank 1, 200.0 µs in the baseline; rank 1 has 3.800 ms more" in said
    )
    assert "rank 0 waits 4.000 ms per step for rank 1" in (report / "summary.md").read_text()
    # What the operators of rank 1 do more, not those of rank 0, which only waits.
    assert [(each["kind"], each["operator"]) for each in found["work"]] == [("more traffic or calls", "aten::sort")]
    assert "aten::sort" in {each["operator"] for each in found["operators"]}


def test_every_required_number_is_there(report):
    assert consistency.absences(report) == []


# What contradicts is found


def number_of(folder, what):
    """A number of the step's time, or of the first cause, as it is printed."""
    found = judged_test(folder)
    step, cause = found["metrics"]["step_time"], found["blame"][0]
    return {
        "current": format_quantity(step["new"], "ns"),
        "effect": format_percent(step["effect"]),
        "interval": format_percent(step["ci95"][1]),
        "throughput": format_quantity(found["metrics"]["throughput"]["new"], "items/s"),
        "cause": format_quantity(cause["new_ns"], "ns"),
    }[what]


def another(text):
    """The printed number with its first digit changed."""
    return re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 9 + 1), text, count=1)


@pytest.mark.parametrize("surface", ["index.html", "summary.md", "terminal.txt"])
@pytest.mark.parametrize("what", ["current", "effect", "interval", "cause"])
def test_another_number_on_a_surface_is_found(copy, surface, what):
    file, printed = copy / surface, number_of(copy, what)
    before, text = "", file.read_text()
    if surface == "index.html":
        # The page's data has a check of its own.
        before, text = text[: text.index("<body>")], text[text.index("<body>") :]
    assert printed in text
    file.write_text(before + text.replace(printed, another(printed), 1))
    found = consistency.contradictions(copy)
    assert any(line.startswith(f"{surface}") and TEST in line for line in found), found


def test_another_throughput_in_a_table_is_found(copy):
    file, printed = copy / "index.html", number_of(copy, "throughput")
    text = file.read_text()
    assert printed in text
    file.write_text(text.replace(printed, another(printed)))
    assert any("throughput" in line and "current" in line for line in consistency.contradictions(copy))


def edit_run(folder, change):
    """Change the regressed test in the run file."""
    file = folder / "run.json"
    data = json.loads(file.read_text())
    change(next(each for each in data["tests"] if each["id"] == TEST))
    file.write_text(json.dumps(data))


def edit_page(folder, script, change):
    """Change the data of a script element of the page."""
    file = folder / "index.html"

    def edited(match):
        data = json.loads(match[2])
        change(data)
        return match[1] + json.dumps(data).replace("<", "\\u003c") + match[3]

    pattern = rf'(<script type="application/json" id="{script}">)(.*?)(</script>)'
    text, number = re.subn(pattern, edited, file.read_text(), flags=re.DOTALL)
    assert number == 1
    file.write_text(text)


def step_of(test):
    return test["metrics"]["step_time"]


RUN_FILE = {
    "the mean of the rounds": (lambda test: step_of(test).update(new=step_of(test)["new"] + 50_000), "new is"),
    "the rounds": (lambda test: step_of(test).update(new_values=[1] * ROUNDS), "the median of its new_values"),
    "an effect outside of the ratios": (lambda test: step_of(test).update(effect=0.9), "the rounds' ratios"),
    "a round less": (lambda test: step_of(test)["new_values"].pop(), "values of them"),
    "an interval that leaves the effect out": (
        lambda test: step_of(test).update(ci95=[0.5, 0.6]),
        "outside of its interval",
    ),
    "a cause's time": (lambda test: test["blame"][0].update(base_ns=123, delta_ns=0), "its breakdown"),
    "a cause's share": (lambda test: test["blame"][0].update(share=0.01), "its share is 0.0100"),
    "a row of the breakdown": (
        lambda test: test["breakdowns"][0]["rows"][0].update(new_ns=99_000_000),
        "its rows add up to",
    ),
    "a row beside its rounds": (
        lambda test: test["breakdowns"][0]["rows"][0].update(new_ns=99_000_000),
        "its rounds are from",
    ),
}


@pytest.mark.parametrize("name", RUN_FILE)
def test_a_run_file_that_contradicts_itself_is_found(copy, name):
    change, text = RUN_FILE[name]
    edit_run(copy, change)
    found = consistency.contradictions(copy)
    assert any(line.startswith("run.json") and text in line for line in found), found


def test_a_kernel_that_took_less_time_is_not_slower(copy):
    metric = {**step_of(judged_test(copy)), "of_step": False, "base_values": [], "new_values": []}
    edit_run(copy, lambda test: test["metrics"].update({"operator aten::tanh": {**metric, "base": 220, "new": 158}}))
    found = consistency.contradictions(copy)
    assert any("operator aten::tanh" in line and "new / base - 1 is -0.28" in line for line in found), found


@pytest.mark.parametrize("kind, text", [
    ("more work", "'more work' is 1e+06 -> 2e+06 flop"),
    ("done worse", "'done worse' is the same arithmetic"),
])  # fmt: skip
def test_work_that_the_count_of_flops_denies_is_found(copy, kind, text):
    work = {"kind": kind, "call": "", "base_step": {"flops": 1e6}, "new_step": {"flops": 2e6}}
    flops = {**judged_test(copy)["metrics"]["ops"], "base": 2e6, "new": 1e6}

    def change(test):
        test["work"] = [work]
        test["metrics"]["flops"] = flops

    edit_run(copy, change)
    assert any(text in line for line in consistency.contradictions(copy))


def peak(bytes_, causes):
    """A change of a peak as the run file has it, and what causes it."""

    def change(test):
        metric = test["metrics"]["peak_memory"]
        sides = {"base": {"peak_bytes": metric["base"]}, "new": {"peak_bytes": metric["base"] + bytes_}}
        test["memory"] = [{"call": "", "causes": [{}], **sides}]
        test["blame"] += [{"kind": "memory", "call": "", "name": "x", "bytes": size} for size in causes]

    return change


PEAK = 52_298_904 - 20_418_696


@pytest.mark.parametrize("bytes_, causes, text", [
    (PEAK, [PEAK - 100, 100], ""),
    (PEAK, [PEAK - 100, 99], f"the peak changed by {PEAK} B, its causes by {PEAK - 1} B"),
    (PEAK + 1, [PEAK + 1], "the metric peak_memory 20418696 -> 52298904 B"),
])  # fmt: skip
def test_memory_that_does_not_add_up_is_found(copy, bytes_, causes, text):
    edit_run(copy, peak(bytes_, causes))
    found = [line for line in consistency.contradictions(copy) if "the peak" in line]
    assert any(text in line for line in found) if text else found == []


@pytest.mark.parametrize("size, is_wrong", [("+30.40 MiB", False), ("+31.40 MiB", True)])
def test_another_size_of_a_cause_of_the_peak_is_found(copy, size, is_wrong):
    edit_run(copy, peak(PEAK, [PEAK]))
    file = copy / "terminal.txt"
    file.write_text(f"{file.read_text()}\n{TEST}\n    cause: peak memory, {size} of +99.00 MiB: 2 tensors\n")
    assert any("peak memory, +31.40 MiB" in line for line in consistency.contradictions(copy)) == is_wrong


def test_another_change_of_a_group_in_a_table_is_found(copy):
    file = copy / "index.html"
    text = file.read_text()
    found = judged_test(copy)
    own = sum(cause["delta_ns"] for cause in found["blame"] if cause["line"] == LINE)
    printed = format_quantity(own, "ns", signed=True)
    place = text.index(f"{printed}<", text.index("Change per step"))
    file.write_text(f"{text[:place]}{another(printed)}{text[place + len(printed) :]}")
    found = consistency.contradictions(copy)
    assert any(line.startswith("index.html, table") and "changed by" in line for line in found), found


def details_of(folder):
    """The script with the data of the regressed test."""
    page = printed.Page((folder / "index.html").read_text())
    return next(script for script, test in page.details([TEST, "tests/perf/test_vit.py::test_infer"]) if test == TEST)


def grow_bar(data):
    data["accounts"][0]["bars"][0][1] += 1000


def move_ends(data):
    for side in ("base_ns", "new_ns"):
        data["accounts"][0][side] += 1_000_000


def edit_row(data):
    data["rows"][0][6] += 1000


@pytest.mark.parametrize("change, texts", [
    (grow_bar, ["the sum of its bars", "run.json: its row changed by"]),
    (move_ends, ["its ends are"]),
    (edit_row, ["operator table"]),
])  # fmt: skip
def test_other_data_of_charts_is_found(copy, change, texts):
    edit_page(copy, details_of(copy), change)
    found = consistency.contradictions(copy)
    for text in texts:
        assert any(line.startswith("index.html") and text in line for line in found), found


@pytest.mark.parametrize(
    "pattern, text",
    [
        (r"<title>round 1: [\d.]+ ms → ([\d.]+ ms)", "picture of step_time of .* a round is"),
        (r"<title>round 1: .* → .*, (\+[\d.]+%)</title>", "picture of step_time of .* a round's change is"),
        (r"change from baseline to current: .*? 95% interval (\+[\d.]+%) to", "picture of step_time of .* interval is"),
    ],
)
def test_another_number_in_the_picture_of_rounds_is_found(copy, pattern, text):
    file = copy / "index.html"
    source = file.read_text()
    start = source.index(f'<span class="id">{TEST}</span></h2>')
    match = re.search(pattern, source[source.index('aria-label="step_time, change', start) :])
    place = source.index('aria-label="step_time, change', start) + match.start(1)
    file.write_text(source[:place] + another(match[1]) + source[place + len(match[1]) :])
    found = consistency.contradictions(copy)
    assert any(re.search(text, line) for line in found), found


def test_another_run_file_in_the_page_is_found(copy):
    edit_page(copy, "perfdl-run", lambda data: data["tests"][0]["metrics"]["step_time"].update(effect=0.1))
    found = consistency.contradictions(copy)
    assert any("#perfdl-run: tests[" in line and "effect is 0.1" in line for line in found), found


def edit_trace(folder, change):
    (file,) = (folder / "traces").glob("*.diff.json.gz")
    data = json.loads(gzip.decompress(file.read_bytes()))
    own = [event for event in data["traceEvents"] if "base_ns" in (event.get("args") or {})]
    assert own
    change(own[0])
    file.write_bytes(gzip.compress(json.dumps(data).encode()))


@pytest.mark.parametrize("args, text", [
    ({"new_ns": 17}, "new_ns is 17"),
    ({"share": 0.5}, "share is 0.5"),
    ({"verdict": "unchanged"}, "is unchanged"),
    ({"verdict": "faster"}, "is faster"),
])  # fmt: skip
def test_another_number_in_a_slice_is_found(copy, args, text):
    edit_trace(copy, lambda event: event["args"].update(args))
    found = consistency.contradictions(copy)
    assert any(line.startswith("traces/") and text in line for line in found), found


def test_another_change_in_the_name_of_a_slice_is_found(copy):
    edit_trace(copy, lambda event: event.update(name="aten::mm (+77.00 ms/step)"))
    assert any("the change in its name is +77.00 ms" in line for line in consistency.contradictions(copy))


def test_another_sum_of_the_causes_in_a_module_is_found(copy):
    edit_trace(copy, lambda event: event.update(args={"causes": "aten::mm", "causes_delta_ns": 5}))
    assert any("its causes changed by 5, run.json" in line for line in consistency.contradictions(copy))


def test_a_slice_that_is_of_no_cause_has_no_change(copy):
    edit_trace(copy, lambda event: event["args"].update(cause="aten::tanh"))
    assert any("is no cause of the page" in line for line in consistency.contradictions(copy))


def test_a_slice_that_was_twice_as_long_is_not_unchanged(copy):
    def change(event):
        event["name"] = "something else"
        event["args"] = {"verdict": "unchanged", "ratio": 3.0, "slice_delta_ns": 5_000_000}

    edit_trace(copy, change)
    assert any("its ratio is 3.0" in line for line in consistency.contradictions(copy))


@pytest.mark.parametrize("surface", ["index.html", "summary.md", "terminal.txt"])
def test_a_recorded_time_without_its_label_is_found(copy, surface):
    stored = format_quantity(step_of(judged_test(copy))["stored"], "ns")
    file = copy / surface
    text = file.read_text()
    place = text.index(TEST, text.index("<body>") if surface == "index.html" else 0) + len(TEST)
    line = "`: " if surface == "summary.md" else ": "
    file.write_text(f"{text[:place]}{line}it took {stored} once{text[place:]}")
    assert any("is the recorded step_time" in line for line in consistency.contradictions(copy))
    file.write_text(f"{text[:place]}{line}recorded: {stored}{text[place:]}")
    assert not any("is the recorded step_time" in line for line in consistency.contradictions(copy))


@pytest.mark.parametrize("amount, text", [
    ("{own} of {whole} in the profiled step, {share}", ""),
    ("{own} of +77.00 ms in the profiled step, {share}", "the profiled step changed by"),
    ("+77.00 ms of {whole} in the profiled step, {share}", "its causes changed by"),
    ("{own} of {whole} in the profiled step, 1%", "its share is 1 %"),
])  # fmt: skip
def test_an_amount_that_is_none_of_a_place_is_found(copy, amount, text):
    found = judged_test(copy)
    (step,) = found["breakdowns"]
    whole = step["new_ns"] - step["base_ns"]
    own = sum(cause["delta_ns"] for cause in found["blame"] if cause["line"] == LINE)
    shown = amount.format(
        own=format_quantity(own, "ns", signed=True),
        whole=format_quantity(whole, "ns", signed=True),
        share=format_percent(own / whole, signed=False),
    )
    file = copy / "terminal.txt"
    file.write_text(f"{file.read_text()}\n{TEST}\n    attention written out: {shown}\n")
    lines = consistency.contradictions(copy)
    assert any(text in line for line in lines) if text else lines == []


@pytest.mark.parametrize("surface, pattern, text", [
    ("index.html", r"(?s)Smaller or uncertain changes.*?(\d+\.\d%)", "its shares"),
    ("summary.md", r"everything else.*?(\d+\.\d%)", "its shares"),
    ("terminal.txt", r"smaller or uncertain changes, (\d+\.\d%)", "their shares"),
    ("terminal.txt", r"rest: [+-](\d+)", "their changes"),
])  # fmt: skip
def test_parts_that_do_not_add_up_are_found(copy, surface, pattern, text):
    file = copy / surface
    shown = file.read_text()
    match = re.search(pattern, shown)
    file.write_text(f"{shown[: match.start(1)]}9{match[1]}{shown[match.end(1) :]}")
    found = consistency.contradictions(copy)
    assert any(line.startswith(surface) and text in line for line in found), found


@pytest.mark.parametrize("surface", ["index.html", "summary.md", "terminal.txt"])
def test_another_number_of_tests_is_found(copy, surface):
    file = copy / surface
    assert "2 compared: 1 regressed" in file.read_text()
    file.write_text(file.read_text().replace("2 compared: 1 regressed", "2 compared: 3 regressed"))
    assert any("run.json: counts are 1 regressed" in line for line in consistency.contradictions(copy))


def test_another_time_in_the_table_of_what_passes_is_found(copy):
    file = copy / "terminal.txt"
    text, number = re.subn(r"(test_vit.py::test_infer +)12\.36 ms", r"\g<1>12.99 ms", file.read_text())
    assert number == 1
    file.write_text(text)
    assert any("12.99 ms" in line and "passed" in line for line in consistency.contradictions(copy))


@pytest.mark.parametrize("what", ["current", "effect", "interval", "cause"])
def test_another_number_of_perfdl_diff_is_found(copy, what):
    file, printed = copy / "diff.txt", number_of(copy, what)
    text = file.read_text()
    assert printed in text
    file.write_text(text.replace(printed, another(printed), 1))
    assert any(line.startswith("diff.txt") for line in consistency.contradictions(copy))


def test_what_a_surface_lacks_is_found(copy):
    for surface in ("summary.md", "terminal.txt"):
        (copy / surface).write_text(f"{TEST}: regressed\n")
    found = consistency.absences(copy)
    for surface in ("summary.md", "terminal.txt"):
        for what in ("baseline", "current", "effect", "interval"):
            assert any(line.startswith(f"{surface}: step_time") and f"no {what}" in line for line in found)
        assert any(line.startswith(f"{surface}: the cause") for line in found)


@pytest.mark.parametrize("share, is_wrong", [("own", False), ("1.0", True)])
def test_a_share_without_nanoseconds_is_read_too(copy, share, is_wrong):
    found = judged_test(copy)
    (step,) = found["breakdowns"]
    own = sum(cause["delta_ns"] for cause in found["blame"] if cause["line"] == LINE)
    share = f"{100 * own / (step['new_ns'] - step['base_ns']):.1f}" if share == "own" else share
    file = copy / "terminal.txt"
    file.write_text(
        f"{file.read_text()}\n{TEST}\n    attention written out: {share}% of the change in the profiled step\n"
    )
    assert any("its share is" in line for line in consistency.contradictions(copy)) is is_wrong
