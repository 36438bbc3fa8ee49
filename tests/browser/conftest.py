"""A report made from a recorded run of examples/, opened in Chromium through Playwright."""

import os
import shutil
from pathlib import Path

import pytest

from pytest_perfdl.report import write_all
from pytest_perfdl.report.reading import read_run

DATA = Path(__file__).parent / "data"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def chromium():
    """A browser; the tests are skipped where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    pytest.importorskip("plotly", reason="plotly, which draws the charts, is not installed")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the PATH, and CHROMIUM names none")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The page of the recorded run: a GPT whose attention got slower in the working tree, and a model that did not."""
    folder = tmp_path_factory.mktemp("report")
    return write_all(read_run(DATA / "run.json", folder)).html


class Tab:
    """An open page and what it complained about or asked the network for."""

    def __init__(self, browser, url, **context):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **context})
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready=true]", state="attached")

    def settled(self):
        """Scroll through the whole page, so that every chart of the open tests is drawn."""
        for place in self.page.locator("div.chart").all():
            place.scroll_into_view_if_needed()
            place.locator(".main-svg").first.wait_for(state="attached")

    def close(self):
        """Close it; nothing may have been complained about, or fetched from anywhere but the page itself."""
        self.context.close()
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.fixture(scope="session")
def tab(chromium, report):
    """The recorded run's page, opened once for all tests that only read it."""
    tab = Tab(chromium, report.as_uri())
    yield tab
    tab.close()


@pytest.fixture
def opened(chromium):
    """A function that opens a page in a tab of its own."""
    tabs = []

    def open_page(path, **context):
        tab = Tab(chromium, path.as_uri(), **context)
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        tab.close()
