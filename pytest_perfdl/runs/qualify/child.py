"""One run of the suite in a pytest of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_perfdl.model.errors import OutcomeError, RunFailed
from pytest_perfdl.results.verdict import Verdict
from pytest_perfdl.runs import child_pytest
from pytest_perfdl.runs.qualify.outcomes import Outcome, outcome_of, reasons_of

_UNBASED: frozenset[Verdict] = frozenset({"missing", "outdated", "incomparable"})


def run_suite(arguments: Sequence[str], share: float, *, first: bool, folder: str | None = None) -> Outcome:
    """Measure and judge the suite once.

    Parameters
    ----------
    arguments
        What to give to pytest besides.
    share
        By how much to slow every step down; 0 for not at all.
    first
        Whether the suite is not known to work: the run then ends at the first test that cannot be judged.
    folder
        The baselines' folder, where that is not pytest's to know.

    Raises
    ------
    RunFailed
        When there is nothing to judge with: pytest does not start, a baseline is missing, a measurement is invalid in
        the first run.
    KeyboardInterrupt
        After pytest has ended too.
    """
    with child_pytest.run(
        lambda scratch: command(arguments, share, scratch, first=first, folder=folder), "qualify"
    ) as ended:
        if ended.run_file is None:
            raise RunFailed(f"pytest ended with exit code {ended.code}: {ended.reason}")
        run = json.loads(ended.run_file.read_bytes())
    try:
        outcome = outcome_of(run, inject=share, seconds=ended.seconds, arguments=arguments)
    except OutcomeError as error:
        raise RunFailed(f"the run.json file of pytest cannot be used: {error}") from error
    _check(run, outcome, first=first)
    return outcome


def command(
    arguments: Sequence[str], share: float, scratch: Path, *, first: bool, folder: str | None = None
) -> tuple[str, ...]:
    """The command line of one run; its report and run file go into the scratch folder."""
    return (
        *child_pytest.command(scratch, *arguments),
        f"--perf-fail-on={','.join(sorted(_UNBASED))}",
        *([f"--perf-inject={share * 100:.12g}"] if share else []),
        *([f"--perf-dir={folder}"] if folder else []),
        *(["--maxfail=1"] if first else []),
    )


def _check(run: Any, outcome: Outcome, *, first: bool) -> None:
    for test, verdict, reason in reasons_of(run, _UNBASED):
        raise RunFailed(
            f"{test} has no baseline to compare with ({verdict}: {reason}): record baselines on this machine with "
            "`pytest --perf-update`, then run perfdl qualify"
        )
    if not first:
        return
    for test, _, reason in reasons_of(run, frozenset({"invalid"})):
        raise RunFailed(f"the measurement of {test} is invalid: {reason}")
    if not any(case.judged for case in outcome.cases):
        raise RunFailed("no test was compared with a baseline: record baselines with `pytest --perf-update`")
