"""The page of `perfdl trace RANK...`: on a phone and a desk, in light and dark; and the ranks in a report."""

import pytest
from browser.accessibility import serious
from unit.report import runs
from unit.report.trace.jobs import write_job

from pytest_perfdl.cli import main
from pytest_perfdl.report import write_all

READY = {"ready": "html.js"}


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    path = folder / "ranks.html"
    assert main(["trace", *map(str, write_job(folder / "job", size=8, slow=6)), "--html", str(path)]) == 0
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1440])
def test_nothing_bars_anybody_or_is_cut_off(opened, page_path, width, scheme):
    page = opened(page_path, color_scheme=scheme, viewport={"width": width, "height": 900}, **READY).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert serious(page) == []
    assert page.locator("h1").inner_text().startswith("Rank 6 of 8 is a straggler")
    names, chart = page.locator(".drawn svg").all()
    assert names.locator("text").all_text_contents() == [f"{'▸ ' if n == 6 else ''}rank {n}" for n in range(8)]
    # Both have one scale, so that a name is beside its row.
    assert abs(names.bounding_box()["height"] - chart.bounding_box()["height"]) < 2
    # The names stay while the chart is moved.
    before = names.bounding_box()["x"]
    page.locator(".pan").first.evaluate("one => { one.scrollLeft = 200; }")
    assert abs(names.bounding_box()["x"] - before) < 2
    texts = [text.bounding_box() for text in chart.locator("text").all()]
    assert min(box["height"] for box in texts) >= 8, "readable"
    right = chart.bounding_box()["x"] + chart.bounding_box()["width"]
    assert all(box["x"] + box["width"] <= right + 1 for box in texts)


@pytest.mark.parametrize("width", [400, 1440])
def test_the_wait_for_the_straggler_is_seen_without_moving(opened, page_path, width):
    page = opened(page_path, viewport={"width": width, "height": 900}, **READY).page
    cell = page.locator("table.matrix td.wait-5").first
    assert cell.inner_text() == "300"
    box = cell.bounding_box()
    assert box["x"] + box["width"] <= width
    background = cell.evaluate("one => getComputedStyle(one).backgroundColor")
    plain = page.locator("table.matrix td.wait-0").first.evaluate("one => getComputedStyle(one).backgroundColor")
    assert background != plain


@pytest.mark.parametrize("width", [400, 1440])
def test_ranks_in_a_report(opened, tmp_path, width):
    run = runs.run(runs.with_ranks(), report_dir=tmp_path / "perf-report")
    tab = opened(write_all(run).html, viewport={"width": width, "height": 900})
    tab.unfold("Ranks")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    assert serious(tab.page) == []
    assert tab.page.locator("table.matrix td.wait-5").inner_text() == "12.3"
    assert tab.page.get_by_text("rank 1 ▸ changed").is_visible()
