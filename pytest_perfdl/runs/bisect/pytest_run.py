"""One run of pytest for a search: the options that all of them have, and what is kept of the run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.model.errors import OutcomeError
from pytest_perfdl.report.story import cause_line, story
from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.runs import child_pytest
from pytest_perfdl.runs.bisect.measurements import Measurement, Request, measurement_of

COUNTING_STEPS = ("--perf-warmup=2", "--perf-steps=4", "--perf-memory=off")
"""Counts need no timed steps."""


def options(request: Request, scratch: Path, further: Sequence[str], metric: str, limit: float) -> tuple[str, ...]:
    """The options of a run of one test, besides those of every `child_pytest.command`.

    Parameters
    ----------
    further
        Options of the user, which come after those that they may replace.
    metric, limit
        Which time the rounds are for, and the slowdown (a fraction) that they have to tell from none.
    """
    limits = {"step_time": "off", "block_time": "off"} | ({metric: f"{limit * 100:.6g}%"} if request.timed else {})
    return (
        "--perf-calibrate=off",
        # An empty folder: no baseline of the project is compared with.
        *(f"--perf-dir={scratch / 'baselines'}", "--perf-fail-on=invalid", "--perf-require=0"),
        *(() if request.timed else COUNTING_STEPS),
        *further,
        *(f"--perf-limit={name}:{text}" for name, text in limits.items()),
    )


def measured(
    request: Request,
    command: Callable[[Path], Sequence[str]],
    reports: Path,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Measurement:
    """Run pytest, and keep what came of it; a run that measured nothing is said to be skipped.

    Parameters
    ----------
    reports
        Folder that keeps the reports of comparisons; see `report_folder`.
    command, folder, environment
        As `child_pytest.run` takes them.

    Raises
    ------
    KeyboardInterrupt
        After pytest has ended too.
    """
    with child_pytest.run(command, "bisect", folder=folder, environment=environment) as ended:
        if ended.run_file is None:
            return Measurement(request, ended.raised or ended.reason)
        try:
            found = measurement_of(json.loads(ended.run_file.read_bytes()), request)
        except (OutcomeError, ValueError) as error:
            return Measurement(request, ended.raised or f"the run file that pytest wrote {error}")
        if found.skipped:
            return replace(found, skipped=": ".join(filter(None, (found.skipped, ended.raised))))
        if request.against is not None:
            with contextlib.suppress(FileNotFoundError):
                shutil.copytree(child_pytest.report(ended.folder), report_folder(reports, request), dirs_exist_ok=True)
            found = replace(found, causes=_causes_in_words(ended.run_file))
        return found


def report_folder(reports: Path, request: Request) -> Path:
    """The folder of the report of a comparison, if that was made."""
    # A request may name a hundred distributions, and a file's name has 255 bytes.
    return reports / hashlib.sha256(repr(request).encode()).hexdigest()[:16]


def _causes_in_words(run_file: Path) -> tuple[str, ...]:
    """The causes of a change, as pytest's own report has them."""
    run = read_run(run_file, child_pytest.report(run_file.parent))
    return tuple(cause_line(group) for group in story(run.results[0], run).causes)
