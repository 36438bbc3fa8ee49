"""Histories as text, CSV, JSON and a page."""

import csv
import io
import json
import math
import re
from html.parser import HTMLParser

import pytest

from pytest_perfdl.report import history as report_history
from pytest_perfdl.report import layout
from pytest_perfdl.report.history import COLUMNS, to_csv, to_json
from pytest_perfdl.results.curve import Point, TestHistory
from pytest_perfdl.stats.change_points import ChangePoint
from unit.test_schemas import check

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e ::error::x"


def point(number, value=4e7, **of):
    given = {
        "commit": f"{number:040x}",
        "date": f"2026-05-{number + 1:02}T10:00:00+00:00",
        "interval": (value * 0.99, value * 1.01),
        "environment": "f0111935",
        "subject": f"Commit {number}",
    }
    return Point(value=value, **{**given, **of})


def history(values=(4e7, 4e7, 5e7, 5e7), changes=(), metric="step_time", test="tests/test_gpt.py::test_step", **of):
    points = tuple(point(number, value) for number, value in enumerate(values))
    given = {"unit": "ns", "better": "lower", "machine_id": "cpu-a", "points": points}
    return TestHistory(id=test, metric=metric, change_points=tuple(changes), **{**given, **of})


SLOWER = ChangePoint(2, 0.25, (0.24, 0.26), 0.998)
CHANGED = history(
    points=(
        point(0),
        point(1, environment_changes=(("torch", "2.12.0", "2.13.0"),)),
        point(2, 5e7, note="more layers"),
        point(3, 5e7),
    ),
    changes=[SLOWER],
)


def test_the_block_of_a_test():
    assert report_history.page([CHANGED], 80).splitlines() == [
        "tests/test_gpt.py::test_step",
        "  step_time  40.00 -> 50.00 ms (+25.0%), 4 points",
        "    ▁▁██",
        "     |^",
        "    | 000000000 2026-05-02 environment: torch 2.12.0 -> 2.13.0",
        "    ^ 000000000 2026-05-03 +25.0% [+24.0%, +26.0%] (worse), probability 99.8%:",
        "      Commit 2",
        "      000000000 2026-05-03 note: more layers",
        "",
        "1 test, 1 change for the worse, 0 for the better",
    ]


def test_without_blocks_it_is_ascii():
    page = report_history.page([CHANGED], 80, blocks=False)
    assert page.isascii()
    assert "    __##\n" in page


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(width):
    long = history(
        tuple(4e7 + number * 1e4 for number in range(700)),
        [ChangePoint(number, 0.1, (0.09, 0.11), 0.99) for number in range(10, 700, 30)],
        points=tuple(point(number % 28, 4e7 + 1e4 * number, note="because of " * 20) for number in range(700)),
    )
    lines = report_history.page([long, CHANGED], width).splitlines()
    assert max(map(layout.cells_wide, lines)) <= width
    assert any("earlier changes not shown (--json has all)" in line for line in lines)


def test_machines_and_metrics_have_their_blocks():
    page = report_history.page([history(), history(metric="ops", unit="1"), history(machine_id="cpu-b")], 80)
    assert [line for line in page.splitlines() if "machine" in line] == ["  machine ID cpu-a", "  machine ID cpu-b"]
    assert page.count("tests/test_gpt.py::test_step") == 1


def test_a_sparkline_does_not_make_noise_a_change():
    assert report_history.sparkline([100, 100.2, 99.9, 100.1], 8) in ("▄▅▄▄", "▅▅▄▅", "▄▅▄▅")
    assert report_history.sparkline([0, 0], 8) == "▁▁"
    assert report_history.sparkline([5], 8) in ("▄", "▅")
    # 100 points in 10 columns: each is the mean of ten.
    assert report_history.sparkline([1.0] * 50 + [2.0] * 50, 10) == "▁▁▁▁▁█████"
    assert len(report_history.sparkline(range(1, 1000), 76)) == 76


def test_more_is_better_of_some_metrics():
    change = ChangePoint(2, 0.25, (0.24, 0.26), 0.99999)
    page = report_history.page([history(changes=[change], better="higher")], 100)
    assert "+25.0% [+24.0%, +26.0%] (better), probability >99.9%" in page
    assert "0 changes for the worse, 1 for the better" in page


def test_exact_changes_have_neither_interval_nor_probability():
    exact = history((4.0, 4.0, 5.0), [ChangePoint(2, 0.25, (0.25, 0.25), 1.0)], unit="1", metric="ops")
    assert "^ 000000000 2026-05-03 +25.0% (worse): Commit 2" in report_history.page([exact], 100)
    infinite = history((0.0, 5.0), [ChangePoint(1, math.inf, (math.inf, math.inf), 1.0)], unit="1", metric="ops")
    assert "from 0 (worse)" in report_history.page([infinite], 100)
    data = to_json([infinite])
    assert data["tests"][0]["change_points"][0]["effect"] is None
    check("history", data)


def test_json_has_the_contract():
    data = json.loads(json.dumps(to_json([CHANGED], ["a line"]), allow_nan=False))
    check("history", data)
    (test,) = data["tests"]
    assert data["skipped"] == ["a line"]
    assert (test["id"], test["metric"], test["machine_id"]) == ("tests/test_gpt.py::test_step", "step_time", "cpu-a")
    assert test["points"][1] == {
        "commit": f"{1:040x}",
        "date": "2026-05-02T10:00:00+00:00",
        "value": 4e7,
        "interval": [4e7 * 0.99, 4e7 * 1.01],
        "environment": "f0111935",
        "environment_changes": [{"name": "torch", "base": "2.12.0", "new": "2.13.0"}],
        "paired": False,
        "subject": "Commit 1",
        "note": None,
    }
    assert test["points"][2]["note"] == "more layers"
    assert test["change_points"] == [
        {
            "commit": f"{2:040x}",
            "date": "2026-05-03T10:00:00+00:00",
            "point": 2,
            "effect": 0.25,
            "interval": [0.24, 0.26],
            "probability": 0.998,
            "worse": True,
        }
    ]


def test_csv_has_a_row_for_each_point():
    rows = list(csv.DictReader(io.StringIO(to_csv([CHANGED, history(metric="=1+1")]))))
    assert list(rows[0]) == [column.title for column in COLUMNS]
    assert len(rows) == 8
    assert [row["change"] for row in rows[:4]] == ["", "", "0.25", ""]
    assert rows[1]["environment_changes"] == "torch 2.12.0 -> 2.13.0"
    assert (rows[2]["value"], rows[2]["note"]) == ("50000000", "more layers")
    assert rows[4]["metric"] == "'=1+1"


class Reader(HTMLParser):
    """Elements by name, and the texts of titles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.titles, self.scripts, self._open = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open = tag
        if tag == "title":
            self.titles.append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "title":
            self.titles[-1] += data


def page_of(tmp_path, *histories):
    report_history.write_page(tmp_path / "a" / "history.html", histories)
    text = (tmp_path / "a" / "history.html").read_text(encoding="utf-8")
    return text, Reader(text)


def test_the_page_has_a_picture_and_all_points(tmp_path):
    text, page = page_of(tmp_path, CHANGED)
    assert "<h1>1 test: 1 change for the worse, 0 for the better</h1>" in text
    circles = [each for tag, each in page.tags if tag == "circle"]
    assert len(circles) == 4
    # Higher values are higher up: y falls.
    ys = [float(each["cy"]) for each in circles]
    assert ys[0] == ys[1] > ys[2] == ys[3]
    assert [each["class"] for tag, each in page.tags if tag == "g"] == ["environment", "change worse"]
    assert "50.00 ms [49.50 ms, 50.50 ms]\n000000000 2026-05-03\nCommit 2\nnote: more layers" in page.titles
    assert any(title.startswith("+25.0% [+24.0%, +26.0%] (worse), probability 99.8%\n") for title in page.titles)
    assert len(re.findall(r'<td class="short" data-label="Date">', text)) == 4
    events = re.findall(r'<div class="cause ([\w-]+)"><strong>000000000 2026-05-0(\d)</strong> (.*)</div>', text)
    assert [(name, day) for name, day, _ in events] == [("up", "3"), ("of-environment", "2")]
    assert events[0][2].endswith('<span class="amount">Commit 2</span> <span class="amount">note: more layers</span>')
    assert events[1][2] == "environment: torch 2.12.0 → 2.13.0"
    held = json.loads(re.search(r'(?s)id="history-json">(.*?)</script>', text)[1])
    assert held == to_json([CHANGED])


def test_lines_lie_between_the_points(tmp_path):
    _, page = page_of(tmp_path, CHANGED)
    x = [float(each["cx"]) for tag, each in page.tags if tag == "circle"]
    lines = [
        float(each["d"][1:].partition(",")[0]) for tag, each in page.tags if tag == "path" and each.get("class") is None
    ]
    assert x[0] < lines[0] < x[1] < lines[1] < x[2]


def test_the_newest_change_comes_first(tmp_path):
    quiet, old = history(test="tests/a.py::test_a"), history(test="tests/b.py::test_b", changes=[SLOWER])
    new = history(test="tests/c.py::test_c", changes=[ChangePoint(3, 0.1, (0.1, 0.1), 0.99)])
    text, _ = page_of(tmp_path, quiet, old, new)
    assert re.findall(r'<span class="id">tests/(.)', text) == ["c", "b", "a"]


def test_a_long_history_draws_its_newest_points(tmp_path, monkeypatch):
    monkeypatch.setattr(report_history, "POINTS", 3)
    monkeypatch.setattr(report_history, "POINTS", 3)
    long = history(
        (1.0, 2.0, 3.0, 4.0, 5.0), [ChangePoint(1, 1.0, (1.0, 1.0), 1.0), ChangePoint(3, 0.3, (0.3, 0.3), 1.0)]
    )
    text, page = page_of(tmp_path, long)
    assert "2 earlier points not drawn" in text
    assert [tag for tag, _ in page.tags].count("circle") == 3
    assert [each["class"] for tag, each in page.tags if tag == "g"] == ["change worse"]


def test_names_of_others_are_text(tmp_path):
    points = (
        point(0, subject=HOSTILE, note=HOSTILE, commit=HOSTILE, date=HOSTILE),
        point(1, environment_changes=((HOSTILE,) * 3,)),
    )
    changes = [ChangePoint(1, 0.1, (0.1, 0.2), 0.99)]
    bad = history(
        test=f"tests/a.py::test[{HOSTILE}]", metric=HOSTILE, machine_id=HOSTILE, points=points, changes=changes
    )
    text, page = page_of(tmp_path, bad)
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert "\x1b" not in text
    assert "\u202e" not in text
    printed = report_history.page([bad], 100)
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "\x1b" not in to_csv([bad])


@pytest.mark.parametrize("values", [(0.0, 0.0), (-1.0, 1.0), (5.0,), (1e-30, 1e30)])
def test_odd_values_can_be_drawn(values, tmp_path):
    odd = history(values)
    _, page = page_of(tmp_path, odd)
    for tag, each in page.tags:
        if tag == "circle":
            assert 0 <= float(each["cy"]) <= 260
    report_history.page([odd], 80)
