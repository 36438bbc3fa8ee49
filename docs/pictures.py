"""Remakes the pictures of the documentation, from a recorded run of examples/ (tests/browser/data).

    pip install playwright plotly
    python docs/pictures.py

Needs Chromium (Debian: `apt-get install chromium`); the variable CHROMIUM names another.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from samples import RUN

from pytest_perfdl.report.html import write_html
from pytest_perfdl.results.run_file import read_run

PICTURES = Path(__file__).resolve().parent / "pictures"
PARTS = {
    "waterfall.png": "[data-part=waterfall]",
    "timeline.png": "[data-part=timeline]",
}
"""Pictures of a part of the page."""


def main() -> int:
    """Write all of them; 1 where there is no browser."""
    from playwright.sync_api import sync_playwright

    browser = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser is None:
        print("there is no Chromium: install it, or name it by the variable CHROMIUM", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "index.html"
        write_html(read_run(RUN, Path(folder)), page)
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        wide = chromium.new_page(viewport={"width": 1200, "height": 1150})
        wide.goto(page.as_uri())
        wide.screenshot(path=PICTURES / "report.png")
        for name, selector in PARTS.items():
            figure = wide.locator(selector).first
            figure.locator("xpath=ancestor::details[1]/summary").click()
            figure.locator(".main-svg, canvas").first.wait_for()
            wide.wait_for_timeout(1000)
            figure.screenshot(path=PICTURES / name)
        phone = chromium.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
        phone.goto(page.as_uri())
        phone.locator("details.test").first.evaluate('test => test.scrollIntoView({behavior: "instant"})')
        phone.screenshot(path=PICTURES / "phone.png")
        chromium.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
