"""What people do with the page: sort, filter, open, zoom, print, read it in the dark and on a phone."""

import json
import re
from pathlib import Path

import pytest
from unit.report import runs

from pytest_perfdl.machine.peaks import Peaks
from pytest_perfdl.report import html
from pytest_perfdl.report.reading import read_run
from pytest_perfdl.results.verdict import OperatorSides, WorkSide

axe = pytest.importorskip(
    "axe_playwright_python", reason="axe-core is not installed: pip install axe-playwright-python"
)
AXE = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def numbers(page, table, heading):
    """What a column of a table sorts by, for the rows that are shown."""
    return page.eval_on_selector_all(
        f"{table} tbody tr:not([hidden]) td[data-label='{heading}']",
        "cells => cells.map(cell => Number(cell.dataset.value))",
    )


def test_a_table_sorts_by_numbers_and_filters_by_words(tab):
    page = tab.page
    heading = page.locator("#causes-1 th", has_text="Difference")
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    down = numbers(page, "#causes-1", "Difference")
    assert down == sorted(down, reverse=True)
    heading.get_by_role("button").press("Enter")
    assert numbers(page, "#causes-1", "Difference") == sorted(numbers(page, "#causes-1", "Difference"))
    page.fill("input[data-filter=causes-1]", "softmax operator")
    shown = page.locator("#causes-1 tbody tr:not([hidden])")
    assert shown.count() >= 2
    assert all("softmax" in text.lower() for text in shown.all_text_contents())


def test_all_operators_are_made_when_they_are_asked_for(tab):
    page = tab.page
    assert page.locator("table[id^=table-]").count() == 0
    page.locator("summary", has_text="All operators").first.click()
    table = page.locator("table[id^=table-]").first
    table.locator("tbody tr").first.wait_for()
    assert "exact" in table.inner_text()
    page.get_by_role("button", name=re.compile("Show all")).last.click()
    assert table.locator("tbody tr:not([hidden])").count() > 40


def test_every_chart_is_drawn_and_described(tab):
    tab.settled()
    labels = [chart.get_attribute("aria-label") for chart in tab.page.locator("div.chart").all()]
    assert len(labels) >= 5
    step = next(label for label in labels if label.startswith("step_time."))
    assert re.search(r"Baseline: median [\d.]+ ms, .* in 10 repeats", step)
    assert "95% interval" in step
    # Each repeat is a mark.
    data = json.loads((Path(__file__).parent / "data" / "run.json").read_text())
    values = data["tests"][0]["metrics"]["step_time"]["base_values"]
    found = tab.page.locator("div.chart[aria-label^='step_time.']").first.locator("path.point").count()
    assert found >= len(values)


def test_the_timeline_zooms_pans_and_says_where_it_is(tab):
    page = tab.page
    timeline = page.locator("[data-part=timeline]").first
    timeline.scroll_into_view_if_needed()
    chart = timeline.locator("div.chart")
    chart.locator(".main-svg").first.wait_for(state="attached")
    status = timeline.get_by_role("status")
    whole = status.inner_text()
    bars = chart.locator("g.point").count()
    assert bars > 50
    timeline.get_by_role("button", name="Zoom in").click()
    half = status.inner_text()
    assert half != whole
    timeline.get_by_role("button", name="Later").press("Space")
    assert status.inner_text() != half
    timeline.get_by_role("button", name="Worst slice").click()
    low, high = page.evaluate("div => div.layout.xaxis.range", chart.element_handle())
    assert 0 < high - low < 100
    timeline.get_by_role("button", name="Whole step").click()
    assert status.inner_text() == whole
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5, steps=4)
    page.mouse.up()
    timeline.locator("p.note", has_text="Shown:").wait_for()
    low, high = page.evaluate("div => div.layout.xaxis.range", chart.element_handle())
    assert high - low < 100


def serious(page):
    """What axe-core calls serious or critical: the rule, and the first element that breaks it."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")]


def test_nothing_serious_bars_anybody(tab):
    tab.settled()
    assert serious(tab.page) == []


def test_on_a_phone_in_the_dark_nothing_is_cut_off_and_nothing_bars_anybody(opened, report):
    tab = opened(report, color_scheme="dark", viewport={"width": 400, "height": 900})
    tab.settled()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 400
    background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", background)[:3])) < 150
    assert serious(tab.page) == []


def test_it_prints(tab, tmp_path):
    printed = tab.page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000


def test_a_link_to_a_test_opens_it(tab):
    link = tab.page.locator("#overview a").last
    test = tab.page.locator(f"details.test{link.get_attribute('href')}")
    test.locator("summary").first.click()
    assert test.get_attribute("open") is None
    link.click()
    tab.page.locator(f"details.test[open]{link.get_attribute('href')}").wait_for()
    assert tab.page.evaluate("location.hash") == link.get_attribute("href")
    test.get_by_role("button", name="Copy link to this test").click()
    said = tab.page.locator("#status")
    said.wait_for()
    assert re.search("Copied the link|refused to copy", said.inner_text())


def test_the_blamed_lines_are_shown_with_their_diff(tab):
    diff = tab.page.locator("figure.source-diff").first
    assert "examples/models/gpt.py: causal_attention" in diff.inner_text()
    assert "softmax(-1, dtype=torch.float64)" in diff.locator(".added").all_inner_texts()[-1]


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
    for summary in tab.page.locator("details.plain > summary").all():
        summary.click()
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
    page.locator("table.metrics").wait_for()
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
    tab.settled()
    part = tab.page.locator("[data-part=roofline]")
    rows = part.locator("tbody tr")
    assert rows.count() == 3
    first = " ".join(rows.first.inner_text().split())
    assert "aten::mm 512×512, 512×512 float32" in first
    assert "3.000 ms → 5.000 ms" in first
    assert "90.0% → 54.0%" in first
    assert "this run alone" in rows.last.inner_text()
    drawn = part.locator("div.chart").evaluate("place => place.data.map(({ name, x }) => [name ?? '', x.length])")
    assert ["baseline", 2] in drawn
    assert ["this run", 2] in drawn
    assert [name for name, _ in drawn if "100.0 Gflop/s" in name or "cache" in name] != []
    assert tab.complaints == []
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_peak_by_module_and_its_rows(opened, tmp_path):
    """The page of a run whose memory changed: the cause, both peaks, the curves, and every row on request."""
    data = Path(__file__).parents[1] / "data" / "memory.json"
    page = tmp_path / "page.html"
    html.write_html(read_run(data, tmp_path), page)
    tab = opened(page)
    tab.settled()
    section = tab.page.locator("section.memory").first
    cause = section.locator("tbody tr").first
    assert "no longer shared with Model.embedding.weight" in cause.inner_text()
    assert "test_model.py" in cause.inner_text()
    (test,) = json.loads(data.read_text())["tests"]
    peaks = tab.page.locator("[data-part=peaks]")
    labels = [chart.get_attribute("aria-label") for chart in peaks.locator("div.chart").all()]
    assert [label.partition(":")[0] for label in labels] == ["baseline", "this run", "baseline"]
    # One part for each module and category, and the whole.
    assert peaks.locator("div.chart").nth(1).locator("path.surface").count() > 20
    peaks.locator("summary", has_text="All rows of the peak").click()
    rows = peaks.locator("table tbody tr")
    rows.first.wait_for()
    account = test["memory"][0]["new"]
    assert rows.count() == len(account["rows"])
    bytes_ = peaks.locator("td[data-label=Bytes]").evaluate_all("cells => cells.map(cell => +cell.dataset.value)")
    assert sum(bytes_) == account["peak_bytes"]
