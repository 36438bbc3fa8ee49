"""pytest-perfdl at work: record a baseline, check unchanged code, plant a regression, detect it.

`make demo` runs this, in about two minutes. Exit code 0 if the planted regression was detected and the unchanged code
passed, 1 otherwise. All files are written below demo/.
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

TEST = "examples/test_gpt.py::test_train_step"
PLANT = "softmax_float64"
QUICK = ("--perf-steps=10", "--perf-warmup=3", "--perf-calibrate=off")
"""A quarter of the usual steps, and no calibration of the machine (20 s), which only utilization needs."""
LIMITS = ("--perf-limit=step_time:10%", "--perf-limit=block_time:10%")
"""Few rounds exclude a slowdown of 10 %, and the planted one is far above it."""


def main() -> int:
    if DEMO.exists():
        shutil.rmtree(DEMO)
    started = time.monotonic()
    say("1/3  Record a baseline: one training step of a small GPT, in 2 fresh processes (10 by default).")
    if pytest("--perf-update", "--perf-repeats=2", report="recorded") != 0:
        return give_up("recording the baseline failed")
    say("2/3  Check the unchanged code: paired rounds of baseline commit and working tree. The test passes.")
    if pytest("--perf", report="unchanged") != 0:
        return give_up("the unchanged code did not pass: this machine may be too busy to measure on right now")
    say(
        f"3/3  Plant a regression in examples/models/gpt.py ({PLANT}): attention computes its softmax in float64,\n"
        "     instead of calling PyTorch's fused operator. The test file stays the same. The test fails, and names\n"
        "     the operators, the module, the changed lines and the tensors."
    )
    if pytest("--perf", report="report", plant=PLANT) != 1:
        return give_up("pytest did not fail")
    missed = [test for test, verdict in verdicts("report").items() if verdict != "regressed"]
    if missed:
        return give_up(f"not detected: {', '.join(missed)}")
    say(
        f"Detected, {time.monotonic() - started:.0f} s after the start. The report: demo/report/index.html\n"
        "     The usual settings are 10 processes, 40 steps and a limit of 3 %."
    )
    return 0


def pytest(mode: str, *more: str, report: str, plant: str = "") -> int:
    """Run the demo's test and return pytest's exit code."""
    folders = ("--perf-dir=demo/baselines", f"--perf-report=demo/{report}")
    words = [mode, *more, *folders, *LIMITS, *QUICK, "--no-header", TEST]
    print("     $ pytest", *words, flush=True)
    # Planted in this working tree only: the baseline commit is checked out without the plant.
    environment = os.environ | {"PERFDL_PLANT": plant, "PERFDL_PLANT_IN": str(ROOT)}
    command = [sys.executable, "-m", "pytest", *words]
    if not plant:
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    # The output of the failing run is kept: docs/pictures.py makes the sample of the README from it.
    lines = []
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    (DEMO / report / "pytest.txt").write_text("".join(lines))
    return running.returncode


def verdicts(report: str) -> dict[str, str]:
    """Test id -> verdict, from the run file of a report."""
    run = json.loads((DEMO / report / "run.json").read_text())
    return {test["id"]: test["verdict"] for test in run["tests"]}


def say(text: str) -> None:
    print(f"\n==== {text}\n", flush=True)


def give_up(why: str) -> int:
    say(f"The demo failed: {why}.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
