"""Live searches of `perfdl bisect` on generated repositories."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from repository import generate

HEAD = (
    "| culprit | commits | answer | probability | measured | skipped | effect | time |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def row(name: str, share: float, commits: int, seed: int, root: Path) -> str:
    """One search, as a row of the table."""
    made = generate(root, share, commits, seed)
    started = time.monotonic()
    words = [
        sys.executable,
        "-m",
        "pytest_perfdl.cli",
        "bisect",
        "--json",
        made.good,
        "HEAD",
        "test_speed.py::test_step",
    ]
    done = subprocess.run(words, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
    minutes = (time.monotonic() - started) / 60
    if not done.stdout:
        return f"| {name} | {commits} | exit code {done.returncode} | | | | | {minutes:.1f} min |"
    found = json.loads(done.stdout)
    answer = found["status"]
    if answer == "found" and found["culprit"] != made.culprit:
        answer = "wrong"
    elif answer == "range":
        answer += f" of {len(found['candidates'])}{'' if made.culprit in found['candidates'] else ' without it'}"
    effect = "" if found["effect"] is None else f"{found['effect']:+.1%}"
    probability = "" if found["probability"] is None else f"{found['probability']:.4f}"
    return (
        f"| {name} | {commits} | {answer} | {probability} | {found['measured_commits']} | {len(found['skipped'])} | "
        f"{effect} | {minutes:.1f} min |"
    )
