"""Size, build time, time until it answers and memory of the report of a large suite; see README.md beside it."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from synthetic import run as synthetic_run

from pytest_perfdl.report import write_all

LIMITS = {"page": 15e6, "build": 20.0, "ready": 3.0}
CHROMIUM = "/usr/bin/chromium"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--kernels", type=int, default=300)
    parser.add_argument("--browser", default=CHROMIUM, help="path of Chromium (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="folder to write the report to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = synthetic_run(arguments.tests, arguments.kernels, Path(scratch), arguments.keep or Path(scratch) / "out")
        started = time.perf_counter()
        written = write_all(run)
        build = time.perf_counter() - started
        size = written.html.stat().st_size
        print(f"{arguments.tests} tests x {arguments.kernels} kernels, {len(written.traces)} trace files")
        print(f"page   {size / 1e6:.2f} MB  (limit {LIMITS['page'] / 1e6:.0f} MB)")
        print(f"build  {build:.2f} s  (limit {LIMITS['build']:.0f} s)")
        ready = opened(written.html, arguments.browser)
    over = size > LIMITS["page"] or build > LIMITS["build"] or ready > LIMITS["ready"]
    print("a limit is passed" if over else "within all limits")
    return int(over)


def opened(page: Path, browser: str) -> float:
    """Open the page in a fresh browser and print what it takes; seconds until it answered."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": 1200, "height": 900})
        session = tab.context.new_cdp_session(tab)
        session.send("Performance.enable")
        started = time.perf_counter()
        tab.goto(page.resolve().as_uri(), wait_until="commit")
        tab.wait_for_selector("html[data-ready=true]", state="attached")
        # It answers when a filter that somebody types has been applied and painted.
        tab.fill("#search", "test_models_3.py")
        tab.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(true))))")
        ready = time.perf_counter() - started
        print(f"ready  {ready:.2f} s until a filter was applied  (limit {LIMITS['ready']:.0f} s)")
        tab.fill("#search", "")
        started = time.perf_counter()
        test = tab.locator("details.test").last
        test.locator("summary").first.click()
        test.locator("details.section > summary", has_text="Operators and kernels").click()
        test.locator("table[id^=table-] tbody tr").first.wait_for()
        print(f"open   {time.perf_counter() - started:.2f} s until a folded test showed its rows")
        tab.wait_for_timeout(1500)
        heap = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        print(f"memory {heap['JSHeapUsedSize'] / 1e6:.0f} MB of JavaScript's heap, {resident() / 1e6:.0f} MB resident")
        print(f"nodes  {heap['Nodes']:.0f}")
        chromium.close()
    return ready


def resident() -> float:
    """Bytes of the largest renderer process that descends from this one: the tab."""
    import os

    parents, sizes = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if b"--type=renderer" in (entry / "cmdline").read_bytes():
                sizes[int(entry.name)] = int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue

    def ours(process: int) -> bool:
        while process > 1:
            process = parents.get(process, 0)
            if process == os.getpid():
                return True
        return False

    return max((size for process, size in sizes.items() if ours(process)), default=0)


if __name__ == "__main__":
    sys.exit(main())
