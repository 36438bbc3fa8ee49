"""Opens a trace in speedscope in a headless browser and reads off the page what it shows."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "speedscope@1.25.0"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SHOWN_MS = 30_000
"""Of the page's own, virtual, clock."""


def page(package: Path | None, setup: Path | None) -> Path | None:
    """The viewer's page: of a package that is there, or of one that npm fetches."""
    if package is None and setup is not None:
        package = setup / "speedscope" / "package"
        if not package.exists() and shutil.which("npm"):
            folder = package.parent
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            shutil.unpack_archive(next(folder.glob("*.tgz")), folder, filter="data")
    found = package / "dist" / "release" / "index.html" if package else None
    return found.resolve() if found and found.exists() else None


def browser(wanted: str | None) -> str | None:
    return next(filter(None, map(shutil.which, (wanted,) if wanted else _BROWSERS)), None)


def show(browser: str, page: Path, trace: Path, screenshot: Path | None, timeout: float) -> tuple[bool, str]:
    """Whether every thread of the trace is in the viewer's list and the first one's events in its table."""
    with tempfile.TemporaryDirectory(prefix="speedscope-") as folder:
        script = Path(folder) / "trace.js"
        data = base64.b64encode(trace.read_bytes()).decode()
        script.write_text(f"speedscope.loadFileFromBase64({json.dumps(trace.name)}, {json.dumps(data)})")
        address = f"{page.as_uri()}#localProfilePath={script}"
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--use-angle=swiftshader",
            "--enable-unsafe-swiftshader",
            "--window-size=1400,900",
            f"--user-data-dir={folder}/profile",
            f"--virtual-time-budget={_SHOWN_MS}",
        ]
        try:
            done = _run([*command, "--dump-dom", f"{address}&view=sandwich"], timeout)
            if screenshot is not None:
                _run([*command, f"--screenshot={screenshot.resolve()}", address], timeout)
        except subprocess.TimeoutExpired:
            return False, f"no end after {timeout:.0f} s"
    text = _text(done.stdout)
    threads, names = _expected(trace)
    missing = [thread for thread in threads if thread not in text]
    # The table shows only the rows that fit its height.
    seen = [name for name in names if name in text]
    if missing or not seen:
        return False, f"not shown: {', '.join(missing) or 'any event'}; the page says {text[:200]!r}"
    return True, f"loaded, {len(threads)} threads; its table has {', '.join(seen[:3])}"


def _run(command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def _text(page: str) -> str:
    """What the page shows, without its markup."""
    body = re.sub(r"<(script|style).*?</\1>", "", page[page.find("<body") :], flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body))).strip()


def _expected(trace: Path) -> tuple[list[str], list[str]]:
    """Names of the threads that have complete events, as speedscope writes them, and of the events."""
    data = trace.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    shown = {(e["pid"], e["tid"]): e for e in events if e["ph"] == "X"}
    found = []
    for pid, tid in shown:
        process = f"{processes[pid]} (pid {pid})" if pid in processes else f"pid {pid}"
        thread = f"{threads[pid, tid]} (tid {tid})" if (pid, tid) in threads else f"tid {tid}"
        found.append(re.sub(r"\s+", " ", f"{process}, {thread}"))
    return found, list(dict.fromkeys(e["name"] for e in events if e["ph"] == "X"))
