"""One run of pytest for a search: the options that all of them have, and what is kept of the run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.bisect.measurements import Measurement, Request, measurement_of
from pytest_perfdl.model.errors import OutcomeError
from pytest_perfdl.report.story import cause_line, story
from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.system import child_pytest, clocks, folders

COUNTING_STEPS = ("--perf-warmup=2", "--perf-steps=4", "--perf-memory=off")
"""Counts need no timed steps."""


def options(request: Request, scratch: Path, further: Sequence[str], metric: str, limit: float) -> tuple[str, ...]:
    """The options of a run; its report and run file go into the scratch folder.

    Parameters
    ----------
    further
        Options of the user, which come after those that they may replace.
    metric, limit
        Which time the rounds are for, and the slowdown (a fraction) that they have to tell from none.
    """
    limits = {"step_time": "off", "block_time": "off"} | ({metric: f"{limit * 100:.6g}%"} if request.timed else {})
    return (
        # A waiver would hide what is searched for.
        *("--override-ini=perfdl_waivers=off",),
        *("--perf", "--perf-github=off", "--perf-calibrate=off", "--perf-traces=none"),
        *(f"--perf-json={_run_file(scratch)}", f"--perf-report={_report(scratch)}"),
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
    started: float,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Measurement:
    """Run pytest, and keep what came of it; a run that measured nothing is said to be skipped.

    Parameters
    ----------
    command
        Makes the command line, for a given scratch folder.
    reports
        Folder that keeps the reports of comparisons; see `report_folder`.
    started
        The `time.monotonic()` moment from which the seconds of the measurement count.
    folder, environment
        Of the process, if they are not this process's.

    Raises
    ------
    KeyboardInterrupt
        After pytest has ended too.
    """
    with folders.for_a_while("bisect") as scratch:
        run_file, output = _run_file(scratch), scratch / "output.txt"
        code = child_pytest.run(command(scratch), output, folder=folder, environment=environment)
        seconds = round(clocks.monotonic() - started, 3)
        if code not in child_pytest.CAME_TO_ITS_END or not run_file.is_file():
            return Measurement(request, child_pytest.raised(output) or child_pytest.reason(output), seconds=seconds)
        try:
            found = measurement_of(json.loads(run_file.read_bytes()), request, seconds)
        except (OutcomeError, ValueError) as error:
            why = child_pytest.raised(output) or f"the run file that pytest wrote {error}"
            return Measurement(request, why, seconds=seconds)
        if found.skipped:
            raised = child_pytest.raised(output)
            return replace(found, skipped=f"{found.skipped}: {raised}" if raised else found.skipped)
        if request.against is not None:
            with contextlib.suppress(FileNotFoundError):
                shutil.copytree(_report(scratch), report_folder(reports, request), dirs_exist_ok=True)
            found = replace(found, causes=_causes_in_words(run_file))
        return found


def report_folder(reports: Path, request: Request) -> Path:
    """The folder of the report of a comparison, if that was made."""
    # A request may name a hundred distributions, and a file's name has 255 bytes.
    return reports / hashlib.sha256(repr(request).encode()).hexdigest()[:16]


def _run_file(scratch: Path) -> Path:
    return scratch / "run.json"


def _report(scratch: Path) -> Path:
    return scratch / "report"


def _causes_in_words(run_file: Path) -> tuple[str, ...]:
    """The causes of a change, as pytest's own report has them."""
    run = read_run(run_file, _report(run_file.parent))
    return tuple(cause_line(group) for group in story(run.results[0], run).causes)
