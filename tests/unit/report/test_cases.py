"""A table of cases on the terminal and on the page: groups first, then the slowest cases, not sorted by name."""

import re
from dataclasses import replace

import pytest

from pytest_perfdl.machine.utilization import NO_RATES
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


def with_rates(run, **changes):
    """The run with rates of its cases."""
    (result,) = run.results
    made = tuple(
        replace(
            case,
            rates={"flops_per_s": 2e9, "roofline": 0.25},
            base_rates={"flops_per_s": 4e9, "roofline": 0.5},
            counts={"ops": 3, "kernels": 2},
            base_counts={"ops": 1, "kernels": 2},
            **changes,
        )
        for case in result.judgement.cases
    )
    return replace(run, results=(replace(result, judgement=replace(result.judgement, cases=made)),))


def test_rates_of_both_sides_and_what_a_call_runs_are_on_the_page():
    run = with_rates(run_of(3))
    page = html.render(run, {}, to_json(run))
    sheet = page[page.index('-case-list-table"') :]
    row = re.sub(r"\s+", " ", sheet[sheet.index("<tbody>") : sheet.index("</tr>", sheet.index("<tbody>"))])
    cells = dict(re.findall(r'data-label="([^"]*)"[^>]*>([^<]*)<', row))
    assert cells["Baseline FLOP/s"] == "4.000 Gflop/s"
    assert cells["FLOP/s"] == "2.000 Gflop/s"
    assert (cells["Baseline Roofline"], cells["Roofline"]) == ("50.0%", "25.0%")
    assert (cells["Baseline operators"], cells["Operators"], cells["Kernels"]) == ("1", "3", "2")
    assert "Baseline kernels" not in cells, "both sides launch as many"
    assert "Items/s" not in cells, "the test does not state them"


def test_a_terminal_has_the_rates_of_the_current_code():
    lines = lines_of(with_rates(run_of(3)), 1)
    (title,) = [line for line in lines if "FLOP/s" in line]
    assert "baseline FLOP/s" not in title
    assert "roofline" in title
    assert any(re.search(r"op=add,n=0003 .* 2\.000 Gflop/s +25\.0%", line) for line in lines)


def test_why_the_roofline_is_unknown_is_said_once():
    run = with_rates(run_of(3), no_roofline=NO_RATES)
    said = "The roofline is unknown: peak rates of this machine are unknown, run perfdl constants to measure them"
    assert sum(said in line for line in lines_of(run, 1)) == 1
    assert f"{said} (3 cases)." in html.render(run, {}, to_json(run))
    assert cases.unknown_rooflines(run_of(3).results[0].judgement) == ""


def test_run_files_hold_cases_and_groups(tmp_path):
    run = with_rates(run_of(3), no_roofline=NO_RATES)
    (read,) = of_data(to_json(run), tmp_path / "run.json").results
    (written,) = run.results
    assert read.judgement.cases == written.judgement.cases
    assert read.judgement.groups == written.judgement.groups
