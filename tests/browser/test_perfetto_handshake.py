"""Opening a trace in Perfetto, against a page that plays Perfetto's side of the documented protocol."""

import gzip
import json
from urllib.parse import parse_qs, urlsplit

import pytest

# Perfetto answers PING once it is ready, takes one trace, and later a range to show if the channel was kept open.
PERFETTO = """<!doctype html><title>Perfetto</title><script>
window.heard = [];
addEventListener("message", (event) => {
  if (event.source !== window.opener) return;
  if (event.data === "PING") {
    window.pings = (window.pings ?? 0) + 1;
    if (window.pings > 2) event.source.postMessage("PONG", "*");
    return;
  }
  const { perfetto } = event.data;
  window.heard.push({ ...perfetto, buffer: perfetto.buffer && Array.from(new Uint8Array(perfetto.buffer)) });
});
</script>"""


@pytest.fixture
def perfetto(opened, report):
    """The page, and the window that its button opens."""
    tab = opened(report)
    tab.context.route(
        "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=PERFETTO, content_type="text/html")
    )
    with tab.page.expect_popup() as popup:
        tab.page.locator("[data-perfetto]").first.click()
    window = popup.value
    window.wait_for_function("window.heard.length === 2")
    return tab, window


def test_the_trace_goes_from_window_to_window_with_the_slice_to_show(perfetto):
    tab, window = perfetto
    trace, shown = window.evaluate("window.heard")
    assert trace["keepApiOpen"] is True
    assert trace["fileName"].endswith(".diff.json.gz")
    assert trace["title"] == "examples/test_gpt.py::test_train_step"
    events = json.loads(gzip.decompress(bytes(trace["buffer"])))["traceEvents"]
    run = json.loads(tab.page.locator("#perfdl-run").text_content())
    first = next(test for test in run["tests"] if test["id"] == trace["title"])["blame"][0]
    of_first = [
        event
        for event in events
        if event["ph"] == "X" and event["pid"] == 2 and event.get("args", {}).get("cause") == first["name"]
    ]
    assert all(event["args"]["delta_ns"] == first["delta_ns"] for event in of_first)
    largest = max(of_first, key=lambda event: event["args"].get("observed_delta_ns", event["dur"] * 1000))
    # In seconds of the trace's own time.
    assert shown["timeStart"] == pytest.approx(largest["ts"] / 1e6)
    assert shown["timeEnd"] == pytest.approx((largest["ts"] + largest["dur"]) / 1e6)
    # Perfetto selects the slice that its address names, in nanoseconds.
    query = parse_qs(urlsplit(window.url).query)
    assert query == {
        "pid": ["2"],
        "ts": [str(round(largest["ts"] * 1000))],
        "dur": [str(round(largest["dur"] * 1000))],
    }
    assert "Sent the trace" in tab.page.locator("#status").inner_text()


def test_only_perfetto_is_answered(tab):
    page = tab.page
    page.evaluate("window.postMessage('PONG', '*')")
    assert "Sent" not in page.locator("#status").inner_text()


def test_a_blocked_window_is_reported(opened, report):
    page = opened(report).page
    page.evaluate("window.open = () => null")
    page.locator("[data-perfetto]").first.click()
    assert "blocked the new window" in page.get_by_role("alert").inner_text()


def test_a_site_that_does_not_answer_is_reported_with_what_to_do_instead(opened, report):
    tab = opened(report)
    page = tab.page
    page.clock.install()
    tab.context.route("https://ui.perfetto.dev/**", lambda route: route.abort())
    with page.expect_popup():
        page.locator("[data-perfetto]").first.click()
    alert = page.get_by_role("alert")
    assert alert.count() == 0
    page.clock.fast_forward(7000)
    alert.wait_for()
    assert "ui.perfetto.dev cannot be reached" in alert.inner_text()
    name = page.locator("[data-perfetto]").first.get_attribute("data-perfetto")
    assert f"perfdl view traces/{name}" in alert.inner_text()
    with page.expect_download() as download:
        alert.get_by_role("link", name="Download the trace").click()
    assert download.value.suggested_filename == name


def test_a_trace_is_downloaded_from_the_page_itself(opened, report, tmp_path):
    alone = tmp_path / "moved.html"
    alone.write_bytes(report.read_bytes())
    tab = opened(alone)
    tab.unfold("Timeline")
    page = tab.page
    with page.expect_download() as download:
        page.locator("a[data-embedded]").first.click()
    path = tmp_path / "trace.json.gz"
    download.value.save_as(path)
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
