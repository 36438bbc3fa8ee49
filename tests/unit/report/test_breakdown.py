from dataclasses import replace

from pytest_perfdl.report.details import BARS, breakdowns, waterfall
from pytest_perfdl.results.verdict import BreakdownRow, StepBreakdown
from unit.report import runs


def sides(base, new, **rest):
    """A result whose records have these rows, (name, count, ns) each; they add up to the profiled step."""
    made = []
    for rows in (base, new):
        listed = [runs.Row("operator", name, count, (ns,) * 5) for name, count, ns in rows]
        record = runs.record("t", rows=listed)
        (call,) = record.calls
        total = (sum(ns for _, _, ns in rows),) * 5
        made.append(runs.replace(record, calls=(runs.replace(call, profiled_ns=total),)))
    return runs.result(base=made[0], new=made[1], **rest)


BASE = [("aten::mm", 4, 8_000_000), ("aten::add", 2, 1_000_000), ("aten::old", 1, 500_000)]
NEW = [("aten::mm", 4, 9_500_000), ("aten::add", 4, 2_000_000), ("aten::fresh", 1, 700_000)]


def drawn(result):
    (only,) = breakdowns(result)
    return waterfall(only, result.judgement)


def rows_of(result, **options):
    return {row.name: row for each in breakdowns(result, **options) for row in each.rows}


def test_the_bars_of_the_waterfall_add_up():
    found = drawn(sides(BASE, NEW, metrics=()))
    assert not found["timed"]
    assert (found["base_ns"], found["new_ns"]) == (9_500_000, 12_200_000)
    assert sum(ns for _, ns in found["bars"]) == 2_700_000
    assert found["bars"][0][0] == "aten::mm"


def test_between_timed_steps_the_profiler_has_a_bar():
    found = drawn(sides(BASE, NEW, metrics=(runs.timed("block_time", 9_000_000, 11_000_000),)))
    assert (found["base_ns"], found["new_ns"], found["timed"]) == (9_000_000, 11_000_000, True)
    assert sum(ns for _, ns in found["bars"]) == 2_000_000
    assert found["bars"][-1] == ["Profiler overhead", -700_000]


def test_many_small_changes_are_one_bar():
    base = [(f"op {number}", 1, 1_000_000) for number in range(30)]
    new = [(name, 1, 1_000_000 + 100_000 * (number % 7)) for number, (name, _, _) in enumerate(base)]
    found = drawn(sides(base, new, metrics=()))
    assert len(found["bars"]) <= BARS + 1
    assert sum(ns for _, ns in found["bars"]) == found["new_ns"] - found["base_ns"]
    assert found["bars"][-1][0] == "16 smaller changes"


def test_every_row_is_in_the_table_once_with_its_match():
    rows = rows_of(sides(BASE, NEW))
    assert rows["aten::mm"].matched_by == "exact"
    assert rows["aten::mm"].effects == {"count": 0, "duration": 1_500_000, "mix": 0, "exposure": 0}
    assert rows["aten::add"].effects["count"] == 1_000_000
    assert sum(row.delta_ns for row in rows.values()) == 2_700_000
    times = [max(row.base_ns or 0, row.new_ns or 0) for row in rows.values()]
    assert times == sorted(times, reverse=True)


def test_unmatched_rows_are_joined_by_name():
    rows = rows_of(sides(BASE, NEW), matched=False)
    assert set(rows) == {"aten::mm", "aten::add", "aten::old", "aten::fresh"}
    assert not any(row.matched_by or row.effects for row in rows.values())


def test_what_rounds_measured_comes_before_what_is_recorded():
    result = sides(BASE, NEW)
    row = BreakdownRow("operator", "aten::mm", 4, 4, 5_000_000, 6_000_000)
    paired = StepBreakdown("", 5_000_000, 6_000_000, (row,))
    result = replace(result, judgement=replace(result.judgement, breakdowns=(paired,)))
    assert breakdowns(result) == (paired,)


def test_nothing_to_compare_with_gives_nothing():
    assert breakdowns(replace(runs.result("missing"), base=None, new=None)) == ()


def test_a_test_without_a_baseline_has_its_own_rows():
    (only,) = breakdowns(runs.result("missing"))
    assert [(row.base_ns, row.matched_by) for row in only.rows] == [(None, "")]
