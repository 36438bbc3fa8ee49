"""The page of `perfdl history`: on a phone and a desk, in the dark, with the keyboard alone, and by a screen reader."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from browser.accessibility import serious

from pytest_perfdl.report.history import EVENTS, OPEN, write_page
from pytest_perfdl.results.curve import Point, TestHistory
from pytest_perfdl.stats.change_points import ChangePoint

READY = {"ready": "html.js"}
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e"
LONG = "tests/perf/test_gpt.py::TestTraining::test_train_step[bf16-batch_size=32-compile=True-attention=flash]"


def history(count=60, test=LONG, metric="step_time", changes=(20, 40), **of):
    """A level that rises by 8 % and falls by 7 %, with changes of the environment and notes."""
    draw = random.Random(test + metric)
    points = []
    for number in range(count):
        value = 4e7 * (1.08 if number >= 20 else 1) * (0.93 if number >= 40 else 1) * draw.gauss(1, 0.004)
        point = Point(
            commit=f"{0x1F2C1ABF9 + number * 0x1234567:040x}"[::-1],
            date=f"2026-{5 + number // 28:02}-{number % 28 + 1:02}T10:00:00+00:00",
            value=value,
            interval=(value * 0.992, value * 1.008),
            environment="f0111935",
            subject="Vectorized data augmentation for images of odd sizes and with an alpha channel"
            if number % 3
            else "",
            note="the new mask costs 8 %, accepted in the review" if number in (20, 33) else "",
        )
        if number in (30, 45):
            point = replace(point, environment_changes=(("torch", f"2.{number}.0+cu128", f"2.{number + 1}.0+cu128"),))
        points.append(point)
    found = tuple(
        ChangePoint(index, effect, (effect - 0.003, effect + 0.003), 0.9999)
        for index, effect in zip(changes, (0.08, -0.07), strict=True)
    )
    given = {"unit": "ns", "better": "lower", "machine_id": "amd-epyc-f26m2s1-avx512-2c-1t", "points": tuple(points)}
    return TestHistory(**{**given, "id": test, "metric": metric, "change_points": found, **of})


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("history") / "history.html"
    write_page(path, [history(), history(test="tests/a.py::test_quiet", change_points=())])
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1024, 1440])
def test_nothing_bars_anybody_or_is_cut_off(opened, page_path, width, scheme):
    page = opened(page_path, color_scheme=scheme, viewport={"width": width, "height": 900}, **READY).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert serious(page) == []
    pictures = page.locator("svg.history").all()
    assert [round(each.bounding_box()["width"]) > 300 for each in pictures] == [True, True]
    for text in page.locator("svg.history").first.locator("text").all():
        box = text.bounding_box()
        assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= width), text.inner_text()
    labels = [box for each in pictures[0].locator("text[text-anchor=middle]").all() if (box := each.bounding_box())]
    assert all(left["x"] + left["width"] < right["x"] for left, right in pairwise(labels))


@pytest.mark.parametrize("width", [1024, 1440])
def test_dates_and_intervals_stay_on_one_line(opened, page_path, width):
    page = opened(page_path, viewport={"width": width, "height": 900}, **READY).page
    cells = page.locator("table").first.locator("tr:not([hidden]) td.short")
    lines = cells.evaluate_all(
        "cells => cells.map(cell => { const range = document.createRange(); range.selectNodeContents(cell); "
        "return range.getClientRects().length; })"
    )
    assert lines == [1] * 30


def test_changes_are_listed_above_the_picture_the_newest_first(opened, page_path):
    page = opened(page_path, viewport={"width": 1440, "height": 900}, **READY).page
    events = page.locator("details.test").first.locator(".cause")
    assert [text.split(" ", 2)[2][:12] for text in events.all_inner_texts()] == [
        "environment:",
        "-7.0% [-7.3%",
        "note: the ne",
        "environment:",
        "+8.0% [+7.7%",
    ]
    assert max(each.bounding_box()["height"] for each in events.all()) < 70, "one or two lines each"
    assert page.locator("details.test").last.locator(".cause.up, .cause.down").count() == 0


def test_the_table_sorts_filters_and_unfolds_by_the_keyboard(opened, page_path):
    page = opened(page_path, **READY).page
    table = page.locator("table").first
    shown = table.locator("tbody tr:not([hidden])")
    assert shown.count() == 15
    page.get_by_role("button", name="Show all 60 rows").first.press("Enter")
    assert shown.count() == 60
    heading = table.locator("th", has_text="Value")
    heading.get_by_role("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    values = shown.locator("td[data-label=Value]").evaluate_all("all => all.map(one => Number(one.dataset.value))")
    assert values == sorted(values, reverse=True)
    search = page.get_by_role("searchbox", name="Filter").first
    assert search.get_attribute("placeholder") == "commit, date or subject"
    search.fill("2026-05-21")
    assert shown.count() == 1
    summary = page.locator("details.test > summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("details.test").first.get_attribute("open") is None
    page.keyboard.press("Enter")
    assert page.locator("details.test").first.get_attribute("open") is not None


def test_the_first_key_skips_to_the_histories_and_focus_is_seen(opened, page_path):
    page = opened(page_path, **READY).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the histories"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_hostile_names_are_text(opened, tmp_path):
    points = tuple(
        replace(each, subject=HOSTILE, note=HOSTILE, environment_changes=((HOSTILE,) * 3,))
        for each in history(30, changes=(20, 25)).points
    )
    path = tmp_path / "hostile.html"
    one = history(30, f"tests/a.py::test[{HOSTILE}]", changes=(20, 25), points=points, machine_id=HOSTILE)
    write_page(path, [replace(one, metric=HOSTILE)])
    page = opened(path, viewport={"width": 400, "height": 900}, **READY).page
    assert page.locator("img").count() == 0
    assert page.locator(".cause").count() == EVENTS
    assert "not listed: the table has all points" in page.locator("main").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_many_tests_and_points(opened, tmp_path):
    path = tmp_path / "many.html"
    many = [history(70, f"tests/a.py::test_{number}", changes=(20, 40)) for number in range(OPEN + 5)]
    long = history(1200, "tests/b.py::test_long")
    write_page(path, [long, *many])
    page = opened(path, viewport={"width": 1024, "height": 900}, **READY).page
    assert page.locator("details.test[open]").count() == OPEN
    assert page.locator("circle").count() == 1000 + 70 * len(many)
    last = page.locator("details.test").last
    last.locator("summary").first.click()
    assert last.locator("svg.history").is_visible()


def test_it_prints(opened, page_path, tmp_path):
    printed = opened(page_path, color_scheme="dark", **READY).page.pdf(path=tmp_path / "history.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert 20_000 < len(printed) < 5_000_000
