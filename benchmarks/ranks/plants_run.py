"""Are planted slowdowns of a two-rank job detected, and are rank and cause named first?

    python benchmarks/ranks/plants_run.py                        # 40 jobs with a plant, 20 without: hours
    python benchmarks/ranks/plants_run.py --kind "small buckets" # one of the kinds of plants.py
    python benchmarks/ranks/plants_run.py --count 10             # the first ten that are missing
    python benchmarks/ranks/plants_run.py --table                # what was found so far, as in PLANTS.md

Each job is a git repository in a temporary folder. The unchanged code is committed, the change is in the working tree,
and `pytest --perf-against HEAD` measures both on two gloo ranks. What it found is appended to
`perf-report/ranks-plants.jsonl`, and the script goes on from there when it is started again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from plants import KINDS, PLANTS, UNCHANGED, Plant  # noqa: E402

RESULTS = ROOT / "perf-report" / "ranks-plants.jsonl"
TIMEOUT_SECONDS = 3600.0
SHOWN = 3
"""Causes that are kept of a job."""


@dataclass(frozen=True)
class Outcome:
    """What one job found."""

    name: str
    kind: str
    wanted_rank: int | None
    exit_code: int
    verdict: str
    effect: float | None
    """Change of the step time, slowest rank, as a share."""
    ci95: tuple[float, float] | None
    rounds: int
    causes: tuple[Mapping[str, Any], ...]
    """The first `SHOWN`, as in the run file."""
    rank_is_right: bool
    """Of the first cause."""
    cause_is_right: bool
    """Of the first cause."""
    codes: tuple[str, ...]
    """Of the integrity findings."""
    seconds: float
    load: float
    """Processes that wanted to run, by the system's average over a minute, when the job ended."""
    date: str

    @property
    def found(self) -> bool:
        """Detected, with rank and cause named first."""
        return self.verdict == "regressed" and self.rank_is_right and self.cause_is_right


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0], formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="jobs, as KIND/VARIANT; they are run again")
    parser.add_argument("--kind", choices=[*KINDS, "unchanged"], help="only jobs of this kind")
    parser.add_argument("--count", type=int, help="run at most so many jobs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of what was found (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--show", action="store_true", help="print the failure of each job")
    arguments = parser.parse_args()
    jobs = {plant.name: plant for plant in (*PLANTS, *UNCHANGED)}
    if unknown := sorted(set(arguments.names) - set(jobs)):
        parser.error(f"no job is called {', '.join(unknown)}; there are {', '.join(jobs)}")
    if not arguments.table:
        known = {outcome.name for outcome in read(arguments.results)}
        todo = [jobs[name] for name in arguments.names] or [
            plant
            for plant in interleaved(PLANTS, UNCHANGED)
            if plant.name not in known and arguments.kind in (None, plant.kind)
        ]
        for plant in todo[: arguments.count]:
            outcome = run(plant, show=arguments.show)
            arguments.results.parent.mkdir(parents=True, exist_ok=True)
            with arguments.results.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
            print(line(outcome), flush=True)
    print(table(read(arguments.results)))
    return 0


def interleaved(planted: list[Plant], unchanged: list[Plant]) -> list[Plant]:
    """One job without a change after every two with one."""
    pairs = zip(planted[::2], planted[1::2], unchanged, strict=True)
    return [job for each in pairs for job in each]


def run(plant: Plant, *, show: bool = False) -> Outcome:
    """Make the job's repository and measure its change.

    Raises
    ------
    SystemExit
        pytest neither passed nor failed, or wrote no run file.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ranks-") as scratch:
        folder, report = Path(scratch) / "job", Path(scratch) / "report"
        write(folder, plant, planted=False)
        for words in (["init", "--quiet", "--initial-branch=main"], ["add", "--all"], ["commit", "--quiet", "-m", "1"]):
            who = ("-c", "user.name=ranks", "-c", "user.email=ranks@example.org", "-c", "commit.gpgsign=false")
            subprocess.run(["git", *who, *words], cwd=folder, check=True)
        write(folder, plant, planted=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--perf-against=HEAD"]
        command += [f"--perf-report={report}", "--perf-traces=none", "--perf-github=off"]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        if show:
            print(done.stdout)
        if done.returncode not in (0, 1) or not (report / "run.json").exists():
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
            raise SystemExit(f"{plant.name}: {' '.join(command)}\nended with exit code {done.returncode}:\n{tail}")
        (test,) = json.loads((report / "run.json").read_text())["tests"]
    return outcome_of(plant, test, done.returncode, time.monotonic() - started)


def write(folder: Path, plant: Plant, *, planted: bool) -> None:
    """The files of a job."""
    for name, text in plant.files(planted=planted).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def environment() -> dict[str, str]:
    """This checkout's plugin, without what the caller's shell sets for its own pytest."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_", "PERFDL_"))}
    return kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def outcome_of(plant: Plant, test: Mapping[str, Any], exit_code: int, seconds: float) -> Outcome:
    """What an entry of a run file says, and whether its first cause is right."""
    metric = next((test["metrics"][name] for name in ("step_time", "block_time") if name in test["metrics"]), {})
    causes = test["blame"]
    rank_is_right, cause_is_right = plant.is_named(causes[0] if causes else None)
    return Outcome(
        name=plant.name,
        kind=plant.kind,
        wanted_rank=plant.rank,
        exit_code=exit_code,
        verdict=test["verdict"],
        effect=metric.get("effect"),
        ci95=metric.get("ci95") and tuple(metric["ci95"]),
        rounds=metric.get("rounds") or 0,
        causes=tuple(causes[:SHOWN]),
        rank_is_right=rank_is_right,
        cause_is_right=cause_is_right,
        codes=tuple(sorted({finding["code"] for finding in test.get("integrity", ())})),
        seconds=round(seconds, 1),
        load=round(os.getloadavg()[0], 1),
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def read(path: Path) -> list[Outcome]:
    """The latest outcome of each job."""
    lines = path.read_text().splitlines() if path.exists() else []
    return list({found.name: found for found in (Outcome(**json.loads(text)) for text in lines)}.values())


def line(outcome: Outcome) -> str:
    """An outcome on a line."""
    effect = "?" if outcome.effect is None else f"{outcome.effect:+.0%}"
    first = outcome.causes[0] if outcome.causes else {}
    named = f"rank {first.get('rank')}: {first.get('name')}" if first else "nothing"
    right = "" if outcome.kind == "unchanged" else ("right" if outcome.found else "WRONG")
    found = f"{outcome.verdict:12} {effect:>6} {outcome.rounds:3} rounds {outcome.seconds:5.0f} s"
    return f"{outcome.name:42} {found}  {named}  {right}"


def table(outcomes: Iterable[Outcome]) -> str:
    """The Markdown table of PLANTS.md."""
    outcomes = list(outcomes)
    rows = [
        "| change | jobs | regressed | rank first | cause first | both | change of the step | rounds | minutes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in (*KINDS, "all", "unchanged"):
        some = [each for each in outcomes if each.kind == kind or (kind == "all" and each.kind != "unchanged")]
        if not some:
            continue
        slower = [each for each in some if each.verdict == "regressed"]
        effects = sorted(each.effect for each in some if each.effect is not None)
        right = [sum(each.rank_is_right for each in slower), sum(each.cause_is_right for each in slower)]
        named = ("", "", "") if kind == "unchanged" else (*right, sum(each.found for each in some))
        spread = f"{effects[0]:+.0%} to {effects[-1]:+.0%}" if effects else ""
        rounds = f"{min(each.rounds for each in some)} to {max(each.rounds for each in some)}"
        minutes = f"{sum(each.seconds for each in some) / 60:.0f}"
        cells = (kind, len(some), len(slower), *named, spread, rounds, minutes)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
