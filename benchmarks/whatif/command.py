"""What the scripts that measure here share: their options, what they print, and the environment that they start in."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pytest_perfdl.workers.process import environment


def options(description: str | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name has all of these")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def tell(text: str, out: Path | None) -> None:
    """Print what was found, and keep it in a file if one is named."""
    print(f"\n{text}")
    if out is not None:
        out.write_text(text + "\n")


def start_pinned() -> None:
    """Start this script again as a perf test's process starts, unless it has: allocators read their settings once."""
    if "PYTEST_PERFDL_WORKER" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], environment(1))
