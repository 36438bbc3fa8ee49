from pytest_perfdl.report.waterfall import BARS, accounts, diffs, part_rows
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


def test_the_bars_of_the_waterfall_add_up():
    (account,) = accounts(diffs(sides(BASE, NEW))).values()
    assert not account.timed
    assert (account.base_ns, account.new_ns) == (9_500_000, 12_200_000)
    assert sum(bar.ns for bar in account.bars) == 2_700_000
    assert account.bars[0].name == "aten::mm"


def test_many_small_changes_are_one_bar():
    base = [(f"op {number}", 1, 1_000_000) for number in range(30)]
    new = [(name, 1, 1_000_000 + 100_000 * (number % 7)) for number, (name, _, _) in enumerate(base)]
    (account,) = accounts(diffs(sides(base, new))).values()
    assert len(account.bars) <= BARS + 2
    assert sum(bar.ns for bar in account.bars) == account.new_ns - account.base_ns
    assert "smaller changes" in account.bars[-1].name


def test_every_row_is_in_the_table_once_with_its_match():
    result = sides(BASE, NEW)
    rows = {one.row.name: one for one in part_rows(result, diffs(result))}
    assert rows["aten::mm"].matched_by == "exact"
    assert rows["aten::mm"].effects == (0, 1_500_000, 0, 0)
    assert rows["aten::add"].effects == (1_000_000, 0, 0, 0)
    assert sum(one.row.delta_ns for one in rows.values()) == 2_700_000
    times = [max(one.row.base_ns or 0, one.row.new_ns or 0) for one in part_rows(result, diffs(result))]
    assert times == sorted(times, reverse=True)


def test_without_an_account_rows_are_joined_by_name():
    rows = {one.row.name: one for one in part_rows(sides(BASE, NEW), {})}
    assert set(rows) == {"aten::mm", "aten::add", "aten::old", "aten::fresh"}
    assert not any(one.matched_by or one.effects for one in rows.values())


def test_nothing_to_compare_with_gives_no_account():
    assert diffs(runs.result("missing")) == {}
