"""What people do with the page: sort, filter, open, zoom, print, read it in the dark and on a phone."""

import json
import re
from pathlib import Path

import pytest
from browser.accessibility import serious
from unit.report import runs

from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.report import html
from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.results.verdict import OperatorSides, WorkSide


def numbers(page, table, heading):
    """What a column of a table sorts by, for the rows that are shown."""
    return table.locator(f"tbody tr:not([hidden]) td[data-label='{heading}']").evaluate_all(
        "cells => cells.map(cell => Number(cell.dataset.value))"
    )


def shown(page):
    """The ids of the tests whose cards are shown."""
    return page.locator("details.test:not([hidden])").evaluate_all("all => all.map(one => one.id)")


def rows_shown(page):
    return page.locator("tr[data-test]:not([hidden])").evaluate_all("all => all.map(one => one.dataset.test)")


def test_all_operators_are_made_when_they_are_asked_for_and_sort_and_filter(opened, report):
    tab = opened(report)
    page = tab.page
    assert page.locator("table[id^=table-]").count() == 0
    tab.unfold("Operators")
    table = page.locator("table[id^=table-]").first
    table.locator("tbody tr").first.wait_for()
    assert "exact" in table.inner_text()
    heading = table.locator("th", has_text="Difference")
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    down = numbers(page, table, "Difference")
    assert down == sorted(down, reverse=True)
    heading.get_by_role("button").press("Enter")
    assert numbers(page, table, "Difference") == sorted(numbers(page, table, "Difference"))
    page.get_by_role("searchbox", name="Filter").first.fill("softmax operator")
    rows = table.locator("tbody tr:not([hidden])")
    assert rows.count() >= 2
    assert all("softmax" in text.lower() for text in rows.all_text_contents())
    page.get_by_role("searchbox", name="Filter").first.fill("")
    page.get_by_role("button", name=re.compile("Show all")).first.click()
    assert table.locator("tbody tr:not([hidden])").count() > 40


def test_chips_and_search_filter_cards_and_table_and_are_kept_in_the_address(opened, rounds_report):
    page = opened(rounds_report).page
    everything = shown(page)
    counts = page.locator(".chip .count").all_inner_texts()
    assert counts == ["6", "2", "1", "2", "1"]
    chip = page.locator(".chip", has_text="regressed")
    chip.press("Enter")
    assert chip.get_attribute("aria-pressed") == "true"
    assert len(shown(page)) == 2
    assert shown(page) == rows_shown(page)
    assert page.evaluate("location.hash") == "#verdict=regressed"
    page.get_by_label("Search").fill("slow step_time")
    assert [one for one in everything if "test_slow" in one] == shown(page) == rows_shown(page)
    page.reload()
    page.wait_for_selector("html[data-ready=true]", state="attached")
    assert len(shown(page)) == 1
    assert page.get_by_label("Search").input_value() == "slow step_time"
    page.get_by_label("Search").fill("no such test")
    assert shown(page) == []
    page.get_by_role("button", name="Show all tests").click()
    assert shown(page) == everything
    assert page.evaluate("location.hash") == ""


def test_a_recording_is_neither_red_nor_missing(opened, rounds_report):
    page = opened(rounds_report).page
    card = page.locator("details.test", has_text="test_recorded")
    assert "missing" not in card.locator("summary").first.inner_text()
    badge = card.locator(".badge").first
    assert "recorded" in badge.inner_text()
    bad = page.locator(".badge.regressed").first.evaluate("one => getComputedStyle(one).color")
    assert badge.evaluate("one => getComputedStyle(one).color") != bad


def test_the_bar_goes_from_one_failing_test_to_the_next_and_names_it(opened, rounds_report):
    tab = opened(rounds_report)
    page = tab.page
    failing = page.locator("details.test[data-fails]").evaluate_all("all => all.map(one => one.id)")
    bar = page.get_by_role("navigation", name="Failing tests")
    for expected in (*failing, failing[0]):
        bar.get_by_role("button", name="Next").press("Enter")
        tab.until("id => Math.abs(document.getElementById(id).getBoundingClientRect().top) < 120", expected)
    bar.get_by_role("button", name="Previous").click()
    tab.until(
        "id => [document.getElementById(id).getBoundingClientRect().top].every(top => top > 0 && top < innerHeight)",
        failing[2],
    )
    tab.until("document.getElementById('where').textContent.includes('of 3 failing')")
    assert bar.bounding_box()["y"] == pytest.approx(0, abs=1), "it stays in view"


@pytest.mark.parametrize("width, fold", [(1440, 900), (400, 1350)])
def test_cause_and_changed_lines_are_on_the_first_screen(opened, rounds_report, width, fold):
    page = opened(rounds_report, viewport={"width": width, "height": 900}).page
    card = page.locator("details.test").first
    for text in ("step_time +40.7%", "95% interval", "scaled_dot_product_flash_attention replaced by"):
        box = card.locator(".body").get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] < fold
    box = card.locator("figure.source-diff").bounding_box()
    assert box["y"] + box["height"] < fold
    assert "softmax(-1, dtype=torch.float64)" in card.locator(".added").all_inner_texts()[-2]
    assert card.locator(".cause a").first.get_attribute("href").startswith("https://github.com/acme/models/blob/")
    names = card.locator(".actions > button").all_inner_texts()
    assert names[:3] == ["Timeline", "Open in Perfetto", "Copy command to measure again"]
    assert card.locator(".actions > details.accept").get_attribute("open") is None


def test_each_round_is_a_dot_beside_the_limit_and_the_interval(opened, rounds_run, rounds_report):
    page = opened(rounds_report).page
    picture = page.locator("details.test").first.locator(".first svg.evidence")
    (metric,) = [one for one in rounds_run.results[0].judgement.metrics if one.name == "step_time"]
    assert picture.locator("circle.dot").count() == len(metric.pairs) == 10
    assert picture.is_visible()
    assert picture.locator("text.limit, text.interval").all_text_contents() == ["limit +3.0%", "95% interval"]
    assert picture.locator("circle.dot title").first.text_content().startswith("round 1: ")


def test_every_chart_is_drawn_and_described_and_a_capture_needs_no_scrolling(opened, rounds_report, tmp_path):
    tab = opened(rounds_report)
    tab.unfold()
    tab.settled()
    assert tab.page.evaluate("scrollY") < 20000
    charts = tab.page.locator("div.chart")
    labels = [chart.get_attribute("aria-label") for chart in charts.all()]
    assert len(labels) >= 3
    assert all(labels)
    tab.page.evaluate("scrollTo(0, 0)")
    tab.page.screenshot(path=tmp_path / "whole.png", full_page=True)
    assert (
        charts.evaluate_all("all => all.filter(one => one.checkVisibility() && !one.querySelector('.main-svg')).length")
        == 0
    )


# What is written and filled on a canvas, in the order in which that happens.
CANVAS = """
window.drawn = [];
const pen = CanvasRenderingContext2D.prototype;
const record = (name, describe) => {
  const own = pen[name];
  pen[name] = function (...all) { describe(this, ...all); return own.apply(this, all); };
};
record("clearRect", () => { window.drawn = []; });
record("fillText", (pen, text, x, y, most) => {
  window.drawn.push({ text, x, y, most, size: pen.measureText(text).width });
});
record("fillRect", ({ fillStyle }, x, y, w, h) => window.drawn.push({ color: fillStyle, x, y, w, h }));
record("strokeRect", (pen) => window.drawn.push({ stroke: pen.getLineDash().length ? "dashed" : "solid" }));
"""


@pytest.fixture
def timeline(opened, rounds_report):
    """The timeline of the first test, open: the tab, its canvas, what it says below."""
    tab = opened(rounds_report, script=CANVAS)
    tab.page.locator("details.test").first.get_by_role("button", name="Timeline").click()
    canvas = tab.page.locator("canvas").first
    canvas.wait_for()
    tab.until("window.drawn.length > 100")
    return tab, canvas, tab.page.locator(".selection").first


def test_slices_have_names_that_fit_and_marks_by_the_size_of_their_change_alone(timeline):
    tab, _, _ = timeline
    drawn = tab.page.evaluate("window.drawn")
    texts = [one for one in drawn if "text" in one and one["most"] is not None]
    assert {"baseline: step", "current: step", "ProfilerStep"} <= {one["text"] for one in texts}
    assert sum("mm" in one["text"] for one in texts) > 5
    names = [one for one in texts if not one["text"].startswith(("baseline:", "current:"))]
    assert [one for one in names if one["size"] > one["most"] * 1.15 + 4] == []
    current = next(one["y"] for one in texts if one["text"].startswith("current:"))
    bad = tab.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--bad').trim()")
    marks = [one for one in drawn if one.get("color") == bad]
    assert len(marks) > 3
    assert all(mark["y"] > current for mark in marks), "the baseline is never marked as slower"
    heights = {round(mark["h"]) for mark in marks}
    assert len(heights) > 2, "the height is the size of the change"


def test_a_click_or_enter_selects_a_slice_with_its_match_and_the_difference(timeline):
    tab, canvas, told = timeline
    assert "Visible: the whole step" in told.inner_text()
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] / 10, "y": 22 + 18 + 9})
    assert "ProfilerStep" in told.inner_text()
    assert re.search(r"baseline: [\d.]+ ms, starts at", told.inner_text())
    assert re.search(r"current: [\d.]+ ms\. Difference: \+[\d.]+ ms \(\+[\d.]+%\)", told.inner_text())
    strokes = [one["stroke"] for one in tab.page.evaluate("window.drawn") if "stroke" in one]
    assert "solid" in strokes, "it is outlined"
    assert "dashed" in strokes, "and so is its match"
    canvas.press("Escape")
    assert "ProfilerStep" not in told.inner_text()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):
        canvas.press(key)
    name = re.search(r"At (.*),", told.inner_text())[1]
    canvas.press("Enter")
    assert told.locator("strong").inner_text() == name
    tab.page.get_by_role("button", name="Largest change").first.click()
    assert told.locator("strong").inner_text() == "aten::_softmax_backward_data"
    assert "No matching slice in the baseline step: new" in told.inner_text()
    low, high = (float(canvas.get_attribute(f"data-{end}")) for end in ("from", "to"))
    assert 0 < high - low < 30e6


def test_the_timeline_zooms_and_pans_by_buttons_and_keys(timeline):
    tab, canvas, told = timeline

    def visible():
        return [float(canvas.get_attribute(f"data-{end}")) for end in ("from", "to")]

    whole = visible()
    buttons = tab.page.locator("[data-part=timeline]").first
    buttons.get_by_role("button", name="Zoom in").click()
    half = visible()
    assert half[1] - half[0] == pytest.approx((whole[1] - whole[0]) / 2)
    assert re.search(r"Visible: [\d.]+ ms to [\d.]+ ms of [\d.]+ ms", told.inner_text())
    buttons.get_by_role("button", name="Later").press("Space")
    assert visible()[0] > half[0]
    canvas.press("+")
    assert visible()[1] - visible()[0] == pytest.approx((half[1] - half[0]) / 2)
    canvas.press("-")
    canvas.press("0")
    assert visible() == whole


def test_a_span_is_measured_by_dragging_and_by_keys(timeline):
    tab, canvas, told = timeline
    box = canvas.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    tab.page.mouse.up()
    number, unit = re.search(r"Measured span: ([\d.]+) (\w+), from", told.inner_text()).groups()
    whole = float(canvas.get_attribute("data-to"))
    assert unit == "ms"
    assert float(number) == pytest.approx(whole / 10 / 1e6, rel=0.02)
    tab.page.locator("[data-part=timeline]").first.get_by_role("button", name="Zoom to selection").click()
    assert float(canvas.get_attribute("data-to")) - float(canvas.get_attribute("data-from")) < whole / 4
    canvas.press("Escape")
    assert "Measured span" not in told.inner_text()
    canvas.press("ArrowRight")
    canvas.press("ArrowDown")
    canvas.press("m")
    assert "press M at another slice" in told.inner_text()
    canvas.press("ArrowRight")
    canvas.press("m")
    assert "Measured span" in told.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1024, 1440])
def test_nothing_bars_anybody_or_is_cut_off(opened, rounds_report, width, scheme):
    tab = opened(rounds_report, color_scheme=scheme, viewport={"width": width, "height": 900})
    tab.settled()
    assert serious(tab.page) == []
    tab.unfold()
    tab.settled()
    tab.page.locator("canvas").first.wait_for()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    assert serious(tab.page) == []
    background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 150) == (scheme == "dark")


def test_it_prints_what_is_open_and_all_tests_of_a_short_report(opened, rounds_report, tmp_path):
    tab = opened(rounds_report, color_scheme="dark")
    tab.unfold()
    tab.settled()
    tab.page.locator("canvas").first.wait_for()
    printed = tab.page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert 50_000 < len(printed) < 5_000_000


def test_before_printing_folded_tests_are_opened_and_drawn_in_the_colors_of_paper(opened, rounds_report):
    tab = opened(rounds_report, color_scheme="dark")
    tab.unfold("Breakdown")
    tab.settled()
    page = tab.page
    folded = page.locator("details.test:not([open])").count()
    assert folded > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.test:not([open])").count() == 0
    chart = page.locator("div.chart").first
    assert chart.evaluate("one => one.layout.font.color") == "#444444"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.test:not([open])").count() == folded
    assert chart.evaluate("one => one.layout.font.color") != "#444444"


def test_a_link_to_a_test_opens_it(opened, rounds_report):
    page = opened(rounds_report).page
    page.locator("summary", has_text="Table of all").click()
    link = page.locator("#overview a").last
    test = page.locator(f"details.test{link.get_attribute('href')}")
    link.click()
    page.locator(f"details.test[open]{link.get_attribute('href')}").wait_for()
    assert page.evaluate("location.hash") == link.get_attribute("href")
    test.get_by_role("button", name="Copy link to this test").click()
    said = page.locator("#status")
    said.wait_for()
    assert re.search("Copied the link|did not allow copying", said.inner_text())


@pytest.mark.parametrize("part", ["", "-timeline"])
def test_a_deep_link_lands_although_charts_above_it_are_drawn_later(opened, rounds_report, part):
    card = "test_slow" if not part else "test_train_step"
    page = opened(rounds_report).page
    target = page.locator("details.test", has_text=card).first.get_attribute("id") + part
    tab = opened(Linked(rounds_report, target))
    tab.settled()
    tab.page.wait_for_timeout(300)
    top = tab.page.evaluate("id => document.getElementById(id).getBoundingClientRect().top", target)
    assert 0 <= top <= 60
    assert tab.page.evaluate("id => document.getElementById(id).open", target)


class Linked:
    """A page's address with what it is linked at."""

    def __init__(self, path, target):
        self.path, self.target = path, target

    def as_uri(self):
        """The address."""
        return f"{self.path.as_uri()}#{self.target}"


def test_hostile_names_are_text_in_tables_and_charts(opened, tmp_path):
    rows = [
        runs.Row("operator", name, 1, (9_000_000,) * 5) for name in (runs.HOSTILE, "<b>bold</b> &amp; $x$", "🚀" * 9)
    ]
    one = runs.result(
        test=f"t.py::test[{runs.HOSTILE}]",
        reason=runs.HOSTILE,
        metrics=[runs.timed(), runs.timed(f"kernel {runs.HOSTILE}")],
        base=runs.record("t", rows=rows),
        new=runs.record("t", rows=[runs.replace(row, ns=(12_000_000,) * 5) for row in rows]),
    )
    page = tmp_path / "hostile.html"
    html.write_html(runs.run(one, runs.hostile()), page)
    tab = opened(page)
    tab.settled()
    tab.unfold()
    tab.unfold(test=1)
    for summary in tab.page.locator("details.plain > summary, details.members > summary").all():
        if summary.is_visible():
            summary.click()
    tab.settled()
    assert tab.page.locator("img").count() == 0
    assert tab.page.locator("b").count() == 0
    shown = tab.page.locator("body").inner_text()
    assert "onerror=alert(1)" in shown
    assert "<b>bold</b> &amp; $x$" in shown
    assert "\u202e" not in shown
    drawn = tab.page.locator("[data-part=waterfall] .main-svg").all_text_contents()
    assert any("<b>bold</b> &amp; $x$" in text for text in drawn)


@pytest.mark.parametrize("width", [400, 1200], ids=["phone", "desk"])
def test_a_curve_fits_its_page_and_bars_nobody(opened, tmp_path, width):
    one = runs.replace(
        runs.result(), curves=(runs.curve(), runs.curve("width", unit="width", sizes=(1.0, 32.0, 1024.0)))
    )
    page = tmp_path / "curve.html"
    html.write_html(runs.run(one), page)
    tab = opened(page, color_scheme="dark", viewport={"width": width, "height": 900})
    tab.settled()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    assert [svg.bounding_box()["width"] > 300 for svg in tab.page.locator("svg.plot").all()] == [True, True]
    assert serious(tab.page) == []


def test_a_large_report_unpacks_a_test_when_it_is_opened(opened, tmp_path):
    many = [runs.result("unchanged", f"t.py::test_{number}") for number in range(html.PLAIN_AT_MOST + 5)]
    path = tmp_path / "many.html"
    html.write_html(runs.run(*many), path)
    page = opened(path).page
    assert page.locator("table.metrics").count() == 0
    page.locator("details.test summary").nth(3).click()
    page.locator("details.test[open] details.section summary", has_text="Metrics").click()
    page.locator("table.metrics").first.wait_for()
    assert "12.34 ms" in page.locator("details.test[open]").inner_text()


@pytest.mark.parametrize("width", [360, 1200])
def test_operators_stand_against_the_roofline_on_both_sides(opened, tmp_path, width):
    def side(time_ns, flops, roofline):
        bound = "compute" if flops else "memory"
        return WorkSide(flops, 3 * 2**20, 1, time_ns, {"float32": 1.0} if flops else {}, roofline, bound)

    shapes = "[[512, 512], [512, 512]]"
    operators = (
        OperatorSides("", "aten::mm", shapes, "float32", side(3e6, 2**28, 0.9), side(5e6, 2**28, 0.54)),
        OperatorSides("", f"aten::add {runs.HOSTILE}", shapes, "float32", side(1e5, 0, 0.8), side(1e5, 0, 0.8)),
        OperatorSides("", "aten::sort", "", "", None, WorkSide(0, 0, 2, 5e4, {}, None)),
    )
    one = runs.result()
    one = runs.replace(one, judgement=runs.replace(one.judgement, operators=operators))
    peaks = {runs.KEY.slug: Peaks({"float32": 1e11}, 4e10, bandwidths=((2**18, 1e11), (2**27, 4e10)))}
    page = tmp_path / "page.html"
    html.write_html(runs.replace(runs.run(one), peaks=peaks), page)
    tab = opened(page, viewport={"width": width, "height": 900})
    tab.unfold("Operators")
    tab.settled()
    part = tab.page.locator("[data-part=roofline]")
    rows = part.locator("tbody tr")
    assert rows.count() == 3
    first = " ".join(rows.first.inner_text().split())
    assert "aten::mm 512×512, 512×512 float32" in first
    assert "3.000 ms → 5.000 ms" in first
    assert "90.0% → 54.0%" in first
    assert "current only" in rows.last.inner_text()
    drawn = part.locator("div.chart").evaluate("place => place.data.map(({ name, x }) => [name ?? '', x.length])")
    assert ["baseline", 2] in drawn
    assert ["current", 2] in drawn
    assert [name for name, _ in drawn if "100.0 Gflop/s" in name or "cache" in name] != []
    assert tab.complaints == []
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_peak_by_module_and_its_rows(opened, tmp_path):
    """The page of a run whose memory changed: the cause, both peaks, the curves, and every row on request."""
    data = Path(__file__).parents[1] / "data" / "memory.json"
    page = tmp_path / "page.html"
    html.write_html(read_run(data, tmp_path), page)
    tab = opened(page)
    tab.unfold("Memory")
    tab.settled()
    section = tab.page.locator("section.memory").first
    cause = section.locator("tbody tr").first
    assert "no longer shared with Model.embedding.weight" in cause.inner_text()
    assert "test_model.py" in cause.inner_text()
    (test,) = json.loads(data.read_text())["tests"]
    peaks = tab.page.locator("[data-part=peaks]")
    labels = [chart.get_attribute("aria-label") for chart in peaks.locator("div.chart").all()]
    assert [label.partition(":")[0] for label in labels] == ["baseline", "current", "baseline"]
    # One part for each module and category, and the whole.
    assert peaks.locator("div.chart").nth(1).locator("path.surface").count() > 20
    peaks.locator("summary", has_text="All rows of the peak").click()
    rows = peaks.locator("table tbody tr")
    rows.first.wait_for()
    account = test["memory"][0]["new"]
    assert rows.count() == len(account["rows"])
    bytes_ = peaks.locator("td[data-label='Current bytes']").evaluate_all(
        "cells => cells.map(cell => +cell.dataset.value)"
    )
    assert sum(bytes_) == account["peak_bytes"]
