"""A report made from a recorded run of examples/, opened in Chromium through Playwright."""

import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from unit.report import runs

from pytest_perfdl.report import write_all
from pytest_perfdl.results.run_file import read_run

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


@pytest.fixture(scope="session")
def rounds_run(tmp_path_factory):
    """The recorded run with the values of its paired rounds, beside tests that failed, passed and were recorded."""
    draw = random.Random(7)
    run = read_run(DATA / "run.json", tmp_path_factory.mktemp("rounds"))

    def with_pairs(metric):
        if metric.evidence != "paired" or metric.base is None:
            return metric
        base = [round(metric.base * draw.gauss(1, 0.05)) for _ in range(metric.rounds)]
        pairs = tuple((value, round(value * (1 + metric.effect) * draw.gauss(1, 0.02))) for value in base)
        return replace(metric, pairs=pairs)

    results = [
        replace(one, judgement=replace(one.judgement, metrics=tuple(map(with_pairs, one.judgement.metrics))))
        for one in run.results
    ]
    others = [
        runs.result("regressed", "tests/test_a.py::test_slow", blame=runs.BLAME),
        runs.result("missing", "tests/test_b.py::test_new"),
        runs.result("unchanged", "tests/test_c.py::test_same"),
        replace(runs.result("missing", "tests/test_d.py::test_recorded"), updated=True, fails=False),
    ]
    return replace(run, results=(*results, *others), repository="https://github.com/acme/models", commit="5ca1ab1e" * 5)


@pytest.fixture(scope="session")
def rounds_report(rounds_run):
    """The page of it."""
    return write_all(rounds_run).html


class Tab:
    """An open page and what it complained about or asked the network for."""

    def __init__(self, browser, url, *, script="", ready="html[data-ready=true]", **context):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **context})
        self.page = self.context.new_page()
        if script:
            self.page.add_init_script(script)
        self.complaints, self.requests = [], []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector(ready, state="attached")

    def unfold(self, *words, test=0):
        """Open the sections of a test whose titles begin with these words, or all of them."""
        for section in self.page.locator("details.test").nth(test).locator("details.section").all():
            title = section.locator("> summary h3").inner_text()
            if section.get_attribute("open") is None and (not words or title.startswith(words)):
                section.locator("summary").first.click()
        # The browser sends `toggle`, on which a section is filled, after the click.
        self.until(
            "[...document.querySelectorAll('details.test[open] details.section[open] [data-part]')]"
            ".every(one => one.dataset.filled)"
        )

    def settled(self):
        """Wait until every chart that is shown is drawn: nobody has to scroll for that."""
        self.until(
            "[...document.querySelectorAll('div.chart')]"
            ".every(one => !one.checkVisibility() || one.querySelector('.main-svg'))"
        )

    def until(self, condition, argument=None, seconds=10):
        """Wait until something is so; the page's policy lets nothing be evaluated in it for that."""
        ends = time.monotonic() + seconds
        while not self.page.evaluate(condition, argument):
            assert time.monotonic() < ends, f"not so within {seconds} s: {condition}"
            self.page.wait_for_timeout(20)

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
