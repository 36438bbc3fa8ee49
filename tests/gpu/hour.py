"""Items of the hour on a machine with a GPU, each of which leaves its result in a file before the next one begins.

A result is a JSON object: whether it is `ok`, and figures. An item whose file is there, and `ok`, is not run again. A
part ends after eight minutes: what runs then is cut off and begins anew in the next call, or goes on there if it is one
that keeps what it has and says how much is `left`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PART_SECONDS = 480.0
"""What one call takes at most."""
FAST = {"flops_per_s": 3e10, "bytes_per_s": 2e9}
SLOW = {"flops_per_s": 3e9, "bytes_per_s": 1e8}
"""Rates of the stand-in."""


@dataclass(frozen=True)
class Item:
    """One thing to find out."""

    name: str
    run: Callable[[Hour], dict]
    needs_device: bool = False
    """Whether a rehearsal leaves it out: the stand-in cannot show it, or shows it by another item."""


@dataclass(frozen=True)
class Hour:
    """Where results go, and what they are of."""

    out: Path
    stand_in: bool
    ends: float = math.inf
    """When the part is over (`time.monotonic`)."""

    @property
    def seconds_left(self) -> float:
        """Of the part; 0 at least."""
        return max(0.0, self.ends - time.monotonic())

    def environment(self, *, fast: bool) -> dict[str, str]:
        """Variables of the processes that measure; steps that keep a GPU busy take a stand-in that is `fast`."""
        path = [str(ROOT), str(ROOT / "tests")]
        added = {}
        if self.stand_in:
            from stand_in.stand_in_gpu import FOLDERS, Card, Setup

            path += map(str, FOLDERS)
            added = {
                "PERFDL_STAND_IN": "1",
                "STAND_IN_GPU": Setup(cards=[Card(**(FAST if fast else SLOW))]).dump(),
            }
        return {**os.environ, **added, "PYTHONPATH": os.pathsep.join(path)}

    def run(self, *command: str, cwd: Path = ROOT, fast: bool = False) -> tuple[int, str]:
        """Run a program of Python to its end: exit code and output.

        Raises
        ------
        subprocess.TimeoutExpired
            The part is over.
        """
        left = None if math.isinf(self.ends) else self.seconds_left
        done = subprocess.run(
            [sys.executable, *command],
            cwd=cwd,
            env=self.environment(fast=fast),
            capture_output=True,
            text=True,
            check=False,
            timeout=left,
        )
        return done.returncode, done.stdout + done.stderr

    def pytest(self, *arguments: str) -> dict:
        """Run tests of this folder: how many passed, and what failed."""
        report = self.out / "junit.xml"
        options = ("-q", "-p", "no:cacheprovider", f"--junitxml={report}")
        code, output = self.run("-m", "pytest", *options, *arguments, fast=True)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
        report.unlink(missing_ok=True)
        bad = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
        skipped = sum(case.find("skipped") is not None for case in cases)
        passed = len(cases) - len(bad) - skipped
        found = {"ok": code == 0 and passed > 0, "passed": passed, "skipped": skipped, "failed": bad}
        return found if found["ok"] else {**found, "output": output[-4000:]}

    def part(self, number: int, items: Iterator[Item]) -> bool:
        """Run what has no result yet; whether all have one, and all are as they should be."""
        folder = self.out / f"part-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        hour, complete = replace(self, ends=time.monotonic() + PART_SECONDS), True
        for item in items:
            file = folder / f"{item.name.replace(' ', '-')}.json"
            if item.needs_device and self.stand_in:
                continue
            if file.exists() and json.loads(file.read_text())["ok"]:
                continue
            if not hour.seconds_left:
                print(f"{item.name}: not begun, the part's time is over; run the same command again")
                complete = False
                continue
            started = time.monotonic()
            try:
                found = item.run(hour)
            except subprocess.TimeoutExpired:
                print(f"{item.name}: cut off, the part's time is over; run the same command again")
                complete = False
                continue
            except Exception as error:
                found = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            found["seconds"] = round(time.monotonic() - started, 1)
            file.with_suffix(".tmp").write_text(json.dumps(found, indent=2) + "\n")
            file.with_suffix(".tmp").rename(file)
            left = f"{found.get('left')} left, run the same command again" if found.get("left") else "FAILED"
            print(f"{item.name}: {'ok' if found['ok'] else left}, {found['seconds']} s")
            complete &= found["ok"]
            self.table()
        return complete

    def table(self) -> None:
        """Write all results so far as a Markdown table that names the device."""
        lines = [f"Device: {self.device()}", "", "| part | item | result | figures |", "| --- | --- | --- | --- |"]
        for file in sorted(self.out.glob("part-*/*.json")):
            found = json.loads(file.read_text())
            figures = {name: value for name, value in found.items() if name not in ("ok", "output", "error", "results")}
            shown = ", ".join(
                f"{name.replace('_', ' ')} {value}" for name, value in figures.items() if value not in ([], "")
            )
            result = "ok" if found["ok"] else "unfinished" if found.get("left") else "**failed**"
            lines.append(f"| {file.parent.name[5:]} | {file.stem.replace('-', ' ')} | {result} | {shown} |")
        (self.out / "summary.md").write_text("\n".join(lines) + "\n")

    def device(self) -> str:
        """Name of the device, and the versions below torch."""
        if self.stand_in:
            return "the stand-in of tests/stand_in: no figure is of a GPU"
        code = "import torch; print(torch.cuda.get_device_name(0), torch.__version__, torch.version.cuda)"
        return self.run("-c", code)[1].strip()


def fresh(folder: Path) -> Path:
    """An empty folder in the place of another one."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder
