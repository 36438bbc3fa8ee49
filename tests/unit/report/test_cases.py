"""A table of cases on the terminal and on the page: groups first, then the slowest cases, not sorted by name."""

import re
from dataclasses import replace

import pytest

from pytest_perfdl.report import cases, html
from pytest_perfdl.report.terminal import summary_lines
from pytest_perfdl.results.run_file import of_data, to_json
from pytest_perfdl.results.verdict import CaseVerdict, GroupVerdict
from unit.report import runs


def run_of(count):
    """A run with a table of so many cases, the first of which got slower."""
    verdicts = ["regressed", *["unchanged"] * (count - 2), "inconclusive"]
    made = tuple(
        CaseVerdict(
            f"op=add,n={count - number:04}",
            verdict,
            effect=0.3 / (number + 1),
            interval=(0.2 / (number + 1), 0.4 / (number + 1)),
            base_ns=1000.0,
            time_ns=1000.0 * (1 + 0.3 / (number + 1)),
            noise=0.01,
            rounds=3,
            counts={"ops": 1, "kernels": 0},
        )
        for number, verdict in enumerate(verdicts)
    )
    groups = (GroupVerdict({"dtype": "float16"}, 40, 0.12, (0.1, 0.14), "aten::to is new", agreeing=38),)
    one = runs.result("regressed")
    return runs.run(replace(one, judgement=replace(one.judgement, cases=made, groups=groups)))


def lines_of(run, verbosity):
    return [line.text for line in summary_lines(run, verbosity, 120)]


def test_a_terminal_lists_groups_and_the_ten_slowest_cases_with_v():
    lines = lines_of(run_of(30), 1)
    said = next(
        place for place, line in enumerate(lines) if "30 cases: 1 regressed, 1 inconclusive, 28 unchanged" in line
    )
    group = next(place for place, line in enumerate(lines) if "dtype=float16" in line)
    shown = [place for place, line in enumerate(lines) if "op=add" in line]
    assert said < group < min(shown)
    assert len(shown) == cases.SHOWN
    assert "op=add,n=0030" in lines[shown[0]]
    assert re.search(r"\+12\.0%\s+\[\+10\.0%, \+14\.0%\]\s+38\s+regressed", lines[group])
    assert re.search(r"1\.000 µs\s+1\.300 µs\s+\+30\.0%\s+\[\+20\.0%, \+40\.0%\]\s+regressed", lines[shown[0]])
    assert not [line for line in lines_of(run_of(30), 0) if "n=0029" in line]


def test_a_page_has_all_cases_with_the_slowest_first():
    page = html.render(run_of(30), {}, to_json(run_of(30)))
    ids = re.findall(r'data-value="(op=add,n=\d+)"', page)
    assert ids == [f"op=add,n={number:04}" for number in range(30, 0, -1)]
    assert "aten::to is new" in page


@pytest.mark.long
def test_a_thousand_cases_are_a_small_page():
    """At most 3 MB: the charts' library and 300 rows; all cases are in its data."""
    run = run_of(1000)
    page = html.render(run, {}, to_json(run)).encode()
    without = html.render(run_of(2), {}, to_json(run_of(2))).encode()
    assert len(page) < 3_000_000
    assert len(page) - len(without) < 1_000_000


def test_run_files_hold_cases_and_groups(tmp_path):
    run = run_of(3)
    (read,) = of_data(to_json(run), tmp_path / "run.json").results
    (written,) = run.results
    assert read.judgement.cases == written.judgement.cases
    assert read.judgement.groups == written.judgement.groups
