"""How the rules of an earlier version of this project decide on a recording: its own code, from git, in a process.

The earlier version must have `benchmarks/decision_quality` with a screen of stored times: those before rounds came
first. What it lacks in this recording (steps of rounds) it is given as the metrics that its judge would make of them.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

NAMES = {"gate": "before, `--perf`", "against": "before, `--perf-against`"}


_LIMITS = "pytest_perfdl.limits"


class BeforeError(RuntimeError):
    """The earlier version is not there or does not run; the message says why."""


def decide(
    revision: str, runs: Sequence[Mapping[str, Any]], shares: Sequence[float], decisions: int, seed: int
) -> dict[str, dict[float, tuple[int, int, float]]]:
    """Alarms, decisions and mean seconds by rule and slowdown.

    Parameters
    ----------
    revision
        The version, as git knows it.
    runs
        As `recording.to_json` gives them, the rounds of one cell.

    Raises
    ------
    BeforeError
    """
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "code"
        _git("worktree", "add", "--quiet", "--detach", str(code), revision)
        try:
            wanted = {"runs": list(runs), "shares": list(shares), "decisions": decisions, "seed": seed}
            done = subprocess.run(
                [sys.executable, __file__, str(code)],
                input=json.dumps(wanted),
                capture_output=True,
                text=True,
                check=False,
                cwd=code,
            )
        finally:
            _git("worktree", "remove", "--force", str(code))
    if done.returncode:
        raise BeforeError(f"{revision} does not replay this recording: {done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout)
    return {NAMES[rule]: {float(share): tuple(each) for share, each in by.items()} for rule, by in found.items()}


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BeforeError(f"git {' '.join(arguments)}: {done.stderr.strip()}")


class _Values:
    """Stands in for the steps of a process in a round: all that is asked of them is these metrics."""

    def __init__(self, metrics: Mapping[str, float]) -> None:
        self._metrics = dict(metrics)

    def metrics(self) -> dict[str, float]:
        return self._metrics


def there(code: Path) -> None:
    """Decide with the modules of the version in a folder; standard input says on what."""
    sys.path[:0] = [str(code), str(code / "benchmarks" / "decision_quality")]
    # Theirs, of which type checkers know nothing; limits were not in a package then.
    recording, replay, limits = (importlib.import_module(name) for name in ("recording", "replay", _LIMITS))
    wanted = json.load(sys.stdin)
    runs: list[Any] = []
    for data in wanted["runs"]:
        if data["kind"] == "process":
            runs.append(recording.from_json(data))
        elif data["kind"] == "round":
            known = {name: data[name] for name in ("workload", "share", "number", "at", "order", "seconds")}
            runs.append(recording.Round(**known, base=_Values(data["base"]), head=_Values(data["head"])))
    pools = [replay.Pool(runs, name) for name in sorted({run.workload for run in runs})]
    rules = {"gate": replay.our_gate, "against": replay.our_against(limits.BUILT_IN)}
    found: dict[str, dict[float, Any]] = {}
    for number, (name, rule) in enumerate(rules.items()):
        found[name] = {}
        for share in wanted["shares"]:
            tally = replay.tally(rule, pools, share, wanted["decisions"], (wanted["seed"], number))
            found[name][share] = (tally.alarms, tally.decisions, tally.seconds)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    # This folder's own modules have the names of theirs.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != HERE]
    there(Path(sys.argv[1]))
