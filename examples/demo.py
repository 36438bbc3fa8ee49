"""The main job, shown: record baselines, run green, plant regressions, see them caught.

`make demo` runs this. Exit code 0 when every planted regression was caught and nothing else was, 1 otherwise.
Everything it writes lies under demo/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo"

PLANTED = {
    "examples/test_gpt.py::test_train_step": ("softmax_float64", "attention computes its softmax in float64"),
    "examples/test_dataloader.py::test_train[in-process]": (
        "jitter_before_crop",
        "the data loader transforms whole photographs before it crops them",
    ),
}


def main() -> int:
    if DEMO.exists():
        shutil.rmtree(DEMO)
    started = time.monotonic()
    say(f"1/3  Recording baselines of {len(PLANTED)} perf tests, ten fresh processes each (one or two minutes).")
    if pytest("--perf-update", report="recorded") != 0:
        return give_up("recording the baselines failed")
    say("2/3  Checking the unchanged code: rounds of two fresh processes, one of the baseline's commit.")
    if pytest("--perf", report="unchanged") != 0:
        return give_up("the unchanged code did not pass: this machine may be too busy to measure on right now")
    say("3/3  Now somebody changes the code, and no test file shows it:")
    for name, effect in PLANTED.values():
        print(f"       {name}: {effect}")
    plants = ",".join(name for name, _ in PLANTED.values())
    if pytest("--perf", report="report", plants=plants) != 1:
        return give_up("pytest did not fail")
    missed = [test for test, verdict in verdicts("report").items() if verdict != "regressed"]
    if missed:
        return give_up(f"not caught: {', '.join(missed)}")
    say(
        f"Caught: both slowdowns failed their tests, with what got slower named ({time.monotonic() - started:.0f} s). "
        f"The report: {DEMO.relative_to(ROOT) / 'report' / 'index.html'}"
    )
    return 0


def pytest(mode: str, *, report: str, plants: str = "") -> int:
    """Run the demo's tests and return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", mode, "--perf-dir=demo/baselines", f"--perf-report=demo/{report}"]
    # A change of a tenth takes few rounds to exclude; what is planted is far beyond it.
    command += ["--perf-limit=step_time:10%", "--perf-limit=block_time:10%"]
    print("     $", " ".join(["pytest", *command[3:], *map(repr, PLANTED)]), flush=True)
    # Planted in this working tree only: it is measured beside a checkout of the code without the plant.
    environment = os.environ | {"PERFDL_PLANT": plants, "PERFDL_PLANT_IN": str(ROOT)}
    command += ["--no-header", *PLANTED]
    if not plants:
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    # What the failing run printed is kept: docs/pictures.py makes README's sample from it.
    lines = []
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    (DEMO / report / "pytest.txt").write_text("".join(lines))
    return running.returncode


def verdicts(report: str) -> dict[str, str]:
    """Test id -> verdict, as the report's run file says."""
    run = json.loads((DEMO / report / "run.json").read_text())
    return {test["id"]: test["verdict"] for test in run["tests"]}


def say(text: str) -> None:
    print(f"\n==== {text}\n", flush=True)


def give_up(why: str) -> int:
    say(f"The demo did not work: {why}.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
