"""What reports say of a test with ranks: whose work changed, who waits for whom, on every surface."""

import re
from dataclasses import replace

import pytest

from pytest_perfdl.report import write_all
from pytest_perfdl.report.markdown import summary
from pytest_perfdl.report.ranks import TELLING, rank_table, sentences, waits_table
from pytest_perfdl.report.terminal import failure_text
from unit.report import runs

SAID = (
    "rank 0 waits 12.35 ms per step for rank 1, 250.0 µs in the baseline; rank 1 has 12.10 ms more work of its own per "
    "step (computing)"
)


@pytest.fixture
def result():
    return runs.with_ranks()


def compared(result, **changes):
    (found,) = result.judgement.ranks
    return replace(result.judgement, ranks=(replace(found, **changes),))


def test_who_waits_for_whom_and_whose_work_changed(result):
    assert sentences(result.judgement) == [SAID]
    (many,) = sentences(runs.with_ranks(count=64).judgement)
    assert many.startswith("the other 63 ranks wait 12.35 ms per step for rank 1 on average, 250.0 µs in the baseline;")
    (named,) = sentences(runs.with_ranks(call="forward").judgement)
    assert named == f"forward: {SAID}"


def test_less_work_is_less(result):
    (found,) = result.judgement.ranks
    (said,) = sentences(compared(result, base=found.new, new=found.base))
    assert said.endswith("rank 1 has 12.10 ms less work of its own per step (computing)")


def test_what_all_ranks_do_has_no_rank(result):
    (said,) = sentences(compared(result, rank=None))
    assert said == SAID.partition(";")[0]


def test_nothing_is_said_of_a_step_that_did_not_change_and_without_a_baseline(result):
    (found,) = result.judgement.ranks
    assert sentences(compared(result, cause=None)) == []
    assert sentences(compared(result, base=None)) == []
    assert sentences(compared(result, base=replace(found.base, ranks=found.base.ranks[:1]))) == []
    assert sentences(compared(result, new=replace(found.new, waits_ns=found.base.waits_ns), rank=None)) == []


def cells(found):
    table = rank_table(found)
    return [[column.text(column.value(row)) for column in table.all_columns] for row in table.rows]


def test_rows_have_both_sides(result):
    (found,) = result.judgement.ranks
    first, second = cells(found)
    assert first[:3] == ["rank 0", "36.00 -> 36.00 ms", "0 ns"]
    assert second[:3] == ["rank 1 ▸ changed", "36.00 -> 48.10 ms", "+12.10 ms"]
    assert first[3:] == [
        "34.80 -> 34.80 ms",
        "200.0 -> 200.0 µs",
        "1.000 -> 1.000 ms",
        "4.000 -> 16.10 ms",
        "83.0% -> 41.0%",
    ]
    (alone, _) = cells(replace(found, base=None))
    assert (alone[1:3], alone[-1]) == (["36.00 ms", ""], "41.0%")


def test_of_many_ranks_the_telling_ones_have_rows():
    (found,) = runs.with_ranks(count=64).judgement.ranks
    assert len(cells(found)) == TELLING
    assert [name for name, *_ in cells(found) if "▸" in name] == ["rank 1 ▸ changed"]
    assert waits_table(found).columns == (("rank 1", True), ("63 others", False))


def test_the_page_says_how_many_ranks_it_leaves_out(tmp_path):
    run = runs.run(runs.with_ranks(count=64), report_dir=tmp_path / "perf-report")
    assert f"The other {64 - TELLING} ranks are in run.json." in write_all(run).html.read_text()


def test_every_surface_says_it(result, tmp_path):
    run = runs.run(result, report_dir=tmp_path / "perf-report")
    flat = " ".join(failure_text(result, run).split())
    assert f"ranks: {SAID}" in flat
    assert f"**Ranks:** {SAID}." in summary(run).replace("\\", "")
    page = write_all(run).html.read_text()
    assert SAID.replace("rank 0", "Rank 0", 1) in page
    section = page[page.index("<h3>Ranks</h3>") :]
    assert re.search(r'<td class="number" data-label="Own work">36.00 → 48.10 ms</td>', section)
    assert re.search(r'<td class="number wait-5">12.3</td>', section)


def test_a_test_without_ranks_has_no_such_section(tmp_path):
    run = runs.run(runs.result(blame=runs.BLAME), report_dir=tmp_path / "perf-report")
    assert "<h3>Ranks</h3>" not in write_all(run).html.read_text()
    assert "ranks:" not in failure_text(run.results[0], run)
