"""Remakes what README shows: the terminal sample and the picture of the report, from the demo's last run.

    make demo && python docs/pictures.py

Needs Chromium (Debian: `apt-get install chromium`).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "demo" / "report"
SAMPLE = re.compile(r"(<!-- sample: failure -->\n```text\n).*?(```\n<!-- end -->)", re.DOTALL)


def main() -> int:
    """Write both; 1 when there is nothing to make them from."""
    if not (REPORT / "index.html").is_file():
        print("there is no demo/report: run make demo first", file=sys.stderr)
        return 1
    readme = ROOT / "README.md"
    output = (REPORT / "pytest.txt").read_text()
    failure = re.search(r"^=+ FAILURES =+\n_+ .* _+\n(.*?)^_+ ", output, re.DOTALL | re.MULTILINE)
    if failure is None:
        print("the demo's last run shows no failure: run make demo again", file=sys.stderr)
        return 1
    readme.write_text(SAMPLE.sub(lambda sample: sample[1] + failure[1] + sample[2], readme.read_text()))
    screenshot(REPORT / "index.html", ROOT / "docs" / "pictures" / "report.png", width=1200, height=1150)
    return 0


def screenshot(page: Path, picture: Path, *, width: int, height: int) -> None:
    """What a browser window of that size shows of the page."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--screenshot={picture}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


if __name__ == "__main__":
    sys.exit(main())
