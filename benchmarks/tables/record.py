"""Records whole rounds of unchanged tables: every case in every round, whatever the rule would no longer measure.

    python benchmarks/tables/record.py --rounds 60 --most-seconds 900

Makes a repository with `examples/test_operators.py`, records a baseline, adds a comment to the code and compares, as
`pytest --perf` does. The rounds, their orders and the tree go into `data/recorded.json.gz`, which `run.py` replays.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKED = HERE / "data" / "recorded.json.gz"
ROUNDS, SECONDS, OUT = "TABLE_ROUNDS", "TABLE_SECONDS", "TABLE_OUT"
"""Environment variables: how many rounds, for how long at most, and the file to write."""

if TYPE_CHECKING:
    from pytest_perfdl.judge.round_data import Round
    from pytest_perfdl.judge.stopping_rule import GateOutcome, Spent
    from pytest_perfdl.judge.tables import TableGate


def pytest_configure() -> None:
    """As a plugin of pytest (`-p record`): rounds end by number and time, and nothing is left out of them."""
    from pytest_perfdl.judge.stopping_rule import GateOutcome
    from pytest_perfdl.judge.tables import TableGate

    end = time.monotonic() + float(os.environ[SECONDS])
    loads: list[float] = []

    def look(gate: TableGate, rounds: Sequence[Round], _spent: Spent | None = None) -> GateOutcome:
        loads.append(os.getloadavg()[0])
        if rounds:
            write(Path(os.environ[OUT]), gate, rounds, loads[1:])
        more = len(rounds) < int(os.environ[ROUNDS]) and time.monotonic() < end
        return GateOutcome(open=more, cases=frozenset(gate.family.tree.cases))

    TableGate.look = look  # type: ignore[method-assign]


def write(path: Path, gate: TableGate, rounds: Sequence[Round], loads: Sequence[float]) -> None:
    """The rounds so far: times of both sides in nanoseconds (rounds, cases), orders, and the tree of the table."""
    from pytest_perfdl.judge.round_data import head_second

    tree = gate.family.tree
    sides = [each.cases for each in rounds]
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "loads": [round(each, 2) for each in loads],
        "cases": tree.cases,
        "nodes": [{"where": dict(node.where), "members": node.members} for node in tree.nodes],
        "head_second": head_second(rounds),
        "base_ns": [[round(each.base[case], 1) for case in tree.cases] for each in sides if each],
        "head_ns": [[round(each.head[case], 1) for case in tree.cases] for each in sides if each],
    }
    path.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--most-seconds", type=float, default=900)
    parser.add_argument("--folder", type=Path, help="where the repository is made (default: a temporary folder)")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    shutil.copy(ROOT / "examples" / "test_operators.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nperf_budget = 600\nperf_device_lock = off\n")
    (folder / ".gitignore").write_text("perf-report/\n.pytest_cache/\n__pycache__/\n")
    python = [sys.executable, "-m", "pytest", "-q", "test_operators.py"]
    paths = os.pathsep.join((str(ROOT), str(HERE)))
    environ = {**os.environ, "PYTHONPATH": paths, ROUNDS: str(arguments.rounds), OUT: str(folder / "rounds.json.gz")}
    environ[SECONDS] = str(arguments.most_seconds)

    def run(*command: str) -> None:
        print(*command, flush=True)
        began = time.monotonic()
        subprocess.run(command, cwd=folder, env=environ, check=False)
        print(f"{time.monotonic() - began:.0f} s", flush=True)

    run("git", "init", "-q")
    run("git", "add", ".")
    run("git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "code")
    run(*python, "--perf-update")
    run("git", "add", ".")
    run("git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "baseline")
    with (folder / "test_operators.py").open("a") as file:
        file.write("\n# No change.\n")
    run(*python, "--perf", "-p", "record")
    PACKED.parent.mkdir(exist_ok=True)
    shutil.copy(folder / "rounds.json.gz", PACKED)


if __name__ == "__main__":
    main()
