"""Tables declared once: what of a column is on a terminal, and what is on a page."""

import pytest

from pytest_perfdl.report import layout
from pytest_perfdl.report.layout import Column, Table

COLUMNS = (
    Column("Name", lambda row: row["name"], "name"),
    Column("CPU self", lambda row: row["ns"], "ns", "time of its own"),
    Column("Kind", lambda row: row["kind"], meaning="what it is", wide=True),
    Column("Waiting for others", lambda row: row["waiting"], "share", "the rest", "waiting"),
)
ROWS = [{"name": f"op{number}", "ns": 1_500_000 * number, "kind": "compute", "waiting": None} for number in (2, 1)]


def test_a_terminal_has_short_titles_and_no_wide_columns():
    table = Table("Operators", COLUMNS, [{**ROWS[0], "waiting": 0.25}, ROWS[1]], "Operators by time")
    assert layout.table(table, 100) == ["       CPU self  waiting", "  op2  3.000 ms    25.0%", "  op1  1.500 ms"]
    assert table.short_legend == "CPU self: time of its own; waiting: the rest"
    assert table.legend == "CPU self: time of its own. Kind: what it is. Waiting for others: the rest."


def test_columns_without_values_are_left_out_with_their_meaning():
    table = Table("Operators", COLUMNS, ROWS, note="A note.")
    assert [column.title for column in table.columns] == ["Name", "CPU self", "Kind"]
    assert table.legend == "CPU self: time of its own. Kind: what it is. A note."


def test_the_first_rows_have_a_title_that_says_how_many_there_are():
    table = Table("Operators", COLUMNS, ROWS, "Operators by time")
    assert layout.title(table, 1) == "Operators by time (1 of 2; --top shows more)"
    assert layout.title(table, 2) == "Operators by time"
    assert layout.table(table, 100, top=1) == ["       CPU self", "  op2  3.000 ms"]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("text", None, ""),
        ("figure", "41.20 -> 45.08 ms", "41.20 -> 45.08 ms"),
        ("ns", 1_500_000, "1.500 ms"),
        ("ns", float("nan"), ""),
        ("signed", 20_000, "+20.00 µs"),
        ("count", 1462.0, "1,462"),
        ("count", 2.5, "2.5"),
        ("share", 0.25, "25.0%"),
        ("percent", 74.6, "75%"),
        ("GB/s", 6.51e9, "6.51 GB/s"),
        ("flop/s", 2.403e9, "2.403 Gflop/s"),
        ("1", 3, "3"),
    ],
)
def test_values_as_people_read_them(kind, value, text):
    assert Column("Title", None, kind).text(value) == text


def test_titles_on_a_terminal_begin_small_but_for_abbreviations():
    assert [Column(title, None).short_title for title in ("Per call", "FLOP/s", "CPU self")] == [
        "per call",
        "FLOP/s",
        "CPU self",
    ]
