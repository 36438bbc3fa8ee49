"""Remakes the samples of output in the documentation, from a recorded run and what the program prints of it today.

    python docs/samples.py            # rewrite them
    python docs/samples.py --check    # say which are not what the program prints; exit code 1 then

A sample stands between `<!-- sample: NAME -->` and `<!-- end -->`, in a fence. The run that they are made from was
recorded from examples/ and lies in tests/browser/data.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pytest_perfdl.report.markdown import summary
from pytest_perfdl.report.reading import read_run
from pytest_perfdl.report.terminal import failure_text, summary_lines

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "tests" / "browser" / "data" / "run.json"
WIDTH = 100
FILES = ("README.md", "docs/tutorial.md")
_SAMPLE = re.compile(r"(<!-- sample: ([\w-]+) -->\n```\w*\n)(.*?)(```\n<!-- end -->)", re.DOTALL)


def samples() -> dict[str, str]:
    """What the program prints, by the name that documents call it by."""
    run = read_run(RUN, ROOT / "perf-report")
    failing = next(result for result in run.results if result.fails)
    return {
        "failure": failure_text(failing, run) + "\n",
        "summary": "".join(f"{line.text}\n" for line in summary_lines(run, 0, WIDTH)),
        "markdown": summary(run),
    }


def rewritten(text: str) -> str:
    """The document with today's samples."""
    made = samples()
    return _SAMPLE.sub(lambda found: found[1] + made[found[2]] + found[4], text)


def main() -> int:
    """Rewrite or check every file."""
    stale = []
    for name in FILES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if rewritten(text) != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(rewritten(text), encoding="utf-8")
    print(f"not what the program prints: {', '.join(stale)}" if stale else "all samples are what the program prints")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
