"""One comparison as somebody would make it: `pytest --perf --perf-against HEAD` on a repository with a change."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common.projects import copy, run_pytest
from planted_change import PACKAGE
from scoring import SHOWN, Change, Comparison, Named, Task
from suite import MODELS, PLANTS

TEMPLATE = HERE / "scratch"


class Repository:
    """A git repository with the unchanged models committed; plants are changes of its working tree's source.

    Raises
    ------
    ProjectError
        When git fails.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy(TEMPLATE, folder)

    def plant(self, name: str) -> None:
        """Make this change in the working tree, and no other; no line moves."""
        for model in MODELS:
            path = Path("src", PACKAGE, f"{model}.py")
            (self.folder / path).write_text((TEMPLATE / path).read_text().replace(f'planted("{name}")', "True"))

    def compare(self, task: Task) -> Comparison:
        """Run pytest on the task's model.

        Raises
        ------
        ProjectError
            When it ended with anything but a passed or failed test, or wrote no run file.
        """
        self.plant(task.plant)
        started = time.monotonic()
        test = f"tests/test_speed.py::test_step[{task.model}]"
        (found,) = run_pytest(self.folder, "--perf", "--perf-against=HEAD", test)
        return outcome(task, found, time.monotonic() - started)


def outcome(task: Task, test: Mapping[str, Any], seconds: float) -> Comparison:
    """What the run file's entry says; it holds no account of the profiled steps."""
    metric = next((test["metrics"][name] for name in ("step_time", "block_time") if name in test["metrics"]), None)
    timed = None
    if metric is not None and metric["effect"] is not None:
        ends = metric["ci95"]
        timed = Change(metric["base"], metric["new"], metric["effect"], ends and (ends[0], ends[1]))
    causes = [
        Named(
            kind=cause["kind"],
            name=cause["name"],
            module=cause["module"],
            line=cause["line"],
            delta_ns=cause["delta_ns"],
            share=cause["share"],
            effects=cause["effects"],
        )
        for cause in test["blame"]
    ]
    return Comparison(
        task=task,
        rounds=(metric or {}).get("rounds") or 0,
        timed=timed,
        profiled=None,
        verdict=test["verdict"],
        causes=tuple(causes[:SHOWN]),
        named=len(causes),
        certain=len(causes),
        coverage=None,
        residual_ns=None,
        detectable=None,
        wanted_line=PLANTS[task.plant].line if task.plant else "",
        seconds=seconds,
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
