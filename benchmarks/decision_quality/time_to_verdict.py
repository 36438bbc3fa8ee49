"""What a verdict on unchanged code costs: `pytest --perf` on one example beside its steps alone.

Each example is run in turns by `pytest --perf`, which measures the first process of each side and then rounds until
there is a verdict, and by a pytest that only calls the step as often as one process does at least (plain_steps.py).
Both are whole commands, from the start of the process to its end.

    python benchmarks/decision_quality/time_to_verdict.py                      # records baselines first
    python benchmarks/decision_quality/time_to_verdict.py --perf-dir DIR       # with baselines that are there
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from scratch_project import ExamplesProject  # noqa: E402

EXAMPLES = ExamplesProject.examples
STEPS_OF_A_REPEAT = 15 + 40 + 1 + 4 + 2
"""Warm-up at its least, timed, the profiler's warm-up and kept steps, two counted windows: `measure.commands`."""


def timed(arguments: Sequence[str], environment: dict[str, str] | None = None) -> float:
    """Seconds of one pytest command.

    Raises
    ------
    SystemExit
        When it ended with anything but passed or failed tests.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with exit status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return seconds


def plain(test: str) -> float:
    """Seconds of the steps alone, with the process around them."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    # One thread, as a repeat has.
    environment = {"PLAIN_STEPS": str(STEPS_OF_A_REPEAT), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return timed(["-p", "no:perfdl", "-p", "plain_steps", test], environment)


def judged(test: str, perf_dir: Path) -> tuple[float, str, int]:
    """Seconds of a verdict, the verdict, and the rounds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "run.json"
        options = [f"--perf-dir={perf_dir}", f"--perf-report={folder}", f"--perf-json={found}", "--perf-github=off"]
        seconds = timed(["--perf", *options, test])
        (entry,) = json.loads(found.read_text())["tests"]
    rounds = max((metric["rounds"] or 0 for metric in entry["metrics"].values()), default=0)
    return seconds, entry["verdict"], rounds


def main() -> int:
    """Run all in turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="of each kind (5)")
    parser.add_argument("--perf-dir", type=Path, metavar="DIR", help="folder with baselines of the examples")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        perf_dir = options.perf_dir or Path(temporary)
        if options.perf_dir is None:
            print("recording baselines", flush=True)
            timed(
                [
                    "--perf-update=all",
                    f"--perf-dir={perf_dir}",
                    f"--perf-report={temporary}/report",
                    *EXAMPLES,
                ]
            )
        alone: dict[str, list[float]] = {test: [] for test in EXAMPLES}
        found: dict[str, list[tuple[float, str, int]]] = {test: [] for test in EXAMPLES}
        for number in range(options.runs):
            for test in EXAMPLES:
                alone[test].append(plain(test))
                found[test].append(judged(test, perf_dir))
                seconds, verdict, count = found[test][-1]
                print(f"[{number + 1}/{options.runs}] {test}: {verdict}, {count} rounds, {seconds:.1f} s", flush=True)
    print("\n| example | steps alone, s | verdict, s | ratio of medians | rounds | verdicts |")
    print("|---|---|---|---|---|---|")
    for test in EXAMPLES:
        floor = statistics.median(alone[test])
        cost = statistics.median(seconds for seconds, *_ in found[test])
        rounds = statistics.median(count for *_, count in found[test])
        counts = Counter(verdict for _, verdict, _ in found[test]).most_common()
        verdicts = ", ".join(f"{verdict} {count}" for verdict, count in counts)
        print(f"| {test} | {floor:.2f} | {cost:.2f} | {cost / floor:.2f} | {rounds:g} | {verdicts} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
