"""Are planted complexity regressions named by kind, and is nothing named on unchanged code? By pytest, on this machine.

A scratch repository holds a step and a perf test of it at four batch sizes. Its baselines are recorded once; then each
trial changes the step, runs `pytest --perf`, and reads what was said of the curve. Trials are appended to a JSON-lines
file as they end; started again, the script does those that are missing.

    python benchmarks/scaling/planted.py                                  # 10 trials a kind, 20 unchanged: hours
    python benchmarks/scaling/planted.py --trials 1 --unchanged 1         # to try it out
    python benchmarks/scaling/planted.py --table
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from common.kept import duration, keep, read
from common.projects import commit, run_pytest

RESULTS = ROOT / "perf-report" / "planted-growth.jsonl"
METRIC = "step_time over batch"
UNCHANGED = "unchanged"

STEP = """
import torch

torch.manual_seed(0)
WEIGHT = torch.randn(256, 256)
SMALL = torch.randn(8, 256)


def make(batch):
    return torch.randn(batch, 16, 256)


def step(x):
    for _ in range(24):
        SMALL @ WEIGHT
    {body}
    return y.sum()
"""
TEST = """
import pytest
from step import make, step


@pytest.mark.perf(scaling={"batch": [4, 8, 16, 32]})
def test_step(perf, batch):
    perf(step, make(batch))
"""
BATCHED = "y = torch.relu(x @ WEIGHT)"
PLANTS = {
    UNCHANGED: BATCHED,
    "overhead regression": f"{BATCHED}\n    for _ in range(16):\n        SMALL @ WEIGHT",
    "per-sample regression": "y = torch.stack([torch.relu(sample @ WEIGHT) for sample in x])",
    "complexity regression": f"{BATCHED}\n    for _ in range(len(x) ** 2 // 48):\n        SMALL @ WEIGHT",
}
"""What the curve's reason must begin with, and the line that makes it so: a constant, a lost batching, an O(n^2)."""


def prepare(folder, arguments):
    """The scratch repository with its baselines; as it was left where there is one."""
    if (folder / "prepared").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / ".gitignore").write_text("__pycache__\nprepared\n")
    (folder / "test_curve.py").write_text(TEST)
    plant(folder, UNCHANGED)
    commit(folder, "step")
    print("recording baselines", flush=True)
    run_pytest(folder, "-pno:randomly", "--perf-update", f"--perf-budget={arguments.budget}")
    commit(folder, "baselines")
    (folder / "prepared").touch()


def plant(folder, kind):
    (folder / "step.py").write_text(STEP.format(body=PLANTS[kind]))


def trial(folder, kind, arguments):
    """What was said of the curve after a change."""
    plant(folder, kind)
    start = time.monotonic()
    try:
        tests = run_pytest(folder, "-pno:randomly", "--perf", f"--perf-budget={arguments.budget}")
    finally:
        plant(folder, UNCHANGED)
    curve = next((test["metrics"][METRIC] for test in tests if METRIC in test["metrics"]), None)
    return {
        "kind": kind,
        "verdict": None if curve is None else curve["verdict"],
        "reason": "the curve was not judged" if curve is None else curve["reason"],
        "tests": {test["id"]: test["verdict"] for test in tests},
        "seconds": time.monotonic() - start,
    }


def right(found):
    """Whether the kind was named, and nothing was on unchanged code."""
    if found["kind"] == UNCHANGED:
        return found["verdict"] in ("unchanged", "improved")
    return found["verdict"] in ("regressed", "suspect") and found["reason"].startswith(found["kind"])


def table(path):
    """How many trials of each kind were right, and what was said in the others; whether that is what is demanded."""
    found = read(path)
    good = True
    for kind in PLANTS:
        mine = [each for each in found if each["kind"] == kind]
        named = sum(map(right, mine))
        good &= bool(mine) and named >= (len(mine) if kind == UNCHANGED else 0.9 * len(mine))
        print(f"{kind:24} {named} of {len(mine)}" + (" without a name" if kind == UNCHANGED else " named"))
        for each in mine:
            if not right(each):
                print(f"    {each['verdict']}: {each['reason']}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10, help="of each kind (%(default)s)")
    parser.add_argument("--unchanged", type=int, default=20, help="of unchanged code (%(default)s)")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for confirming one size (%(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "perf-report" / "planted-growth", help="scratch repository"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--table", action="store_true", help="only show what was found")
    arguments = parser.parse_args()
    if not arguments.table:
        prepare(arguments.folder, arguments)
        wanted = {kind: arguments.unchanged if kind == UNCHANGED else arguments.trials for kind in PLANTS}
        known = [each["kind"] for each in read(arguments.results)]
        # In turns, so that what the machine does meets all kinds alike.
        left = [
            kind
            for number in range(max(wanted.values()))
            for kind in PLANTS
            if known.count(kind) <= number < wanted[kind]
        ]
        start = time.monotonic()
        for number, kind in enumerate(left):
            found = trial(arguments.folder, kind, arguments)
            keep(arguments.results, found)
            each = (time.monotonic() - start) / (number + 1)
            word = "right" if right(found) else "WRONG"
            print(
                f"{number + 1} of {len(left)}, about {duration(each * (len(left) - number - 1))} left: "
                f"{word}: {kind}: {found['verdict']}: {found['reason'][:120]}",
                flush=True,
            )
    return 0 if table(arguments.results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
