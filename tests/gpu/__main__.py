"""An hour on a machine with a GPU: `python -m tests.gpu --part N`, N from 1 to 4; with `--stand-in`, a rehearsal.

Each call takes eight minutes at most; the same command continues where one was stopped, and on a device part 2 takes
several calls. Results go to one folder, a file after every item, with a Markdown table for
docs/explanation/benchmarks.md. No network is used: torch with CUDA, this package with its test extras, and nvidia-ml-py
must be installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from tests.gpu.hour import ROOT, Hour, Item, fresh  # noqa: E402
from tests.gpu.planted import PLANTED, TEST, source  # noqa: E402
from tests.gpu.traces import KINDS  # noqa: E402

CONFTEST = """
import os

if os.environ.get("PERFDL_STAND_IN") and os.environ.get("PYTEST_PERFDL_WORKER"):
    import stand_in_gpu

    stand_in_gpu.install()
"""
INI = "[pytest]\nperf_calibrate = off\n"
IGNORED = "perf-report/\nbaselines/\n__pycache__/\n*.json*\n"
CUDA_TESTS = {
    "test_counts_are_exact_and_kernels_are_timed[eager]": False,
    "test_counts_are_exact_and_kernels_are_timed[compiled]": True,
    "test_counts_are_exact_and_kernels_are_timed[graph]": False,
    "test_counts_are_exact_and_kernels_are_timed[copy]": True,
    "test_counts_are_exact_and_kernels_are_timed[sync]": True,
    "test_the_account_of_a_trace_closes": False,
    "test_a_product_that_fills_the_device_comes_near_its_limits": True,
    "test_copies_that_nothing_hides_are_exposed": False,
    "test_the_peak_of_the_device_is_accounted_for": True,
}
"""Tests of `test_cuda.py`, and whether one needs a device; the others have all kinds of steps but a compiled one."""


def first(_: Hour) -> Iterator[Item]:
    """What the package relies on, and what it measures."""
    yield Item("contract", lambda hour: hour.pytest("tests/gpu/test_contract.py", "-k", which(hour)))
    for name, needs_device in CUDA_TESTS.items():
        test = f"tests/gpu/test_cuda.py::{name}"
        yield Item(name, lambda hour, test=test: hour.pytest(test), needs_device)
    for kind in KINDS:
        yield Item(f"trace {kind}", lambda hour, kind=kind: recorded(hour, kind), needs_device=kind == "compiled")
    yield Item("traces of two processes", lambda hour: recorded(hour, "eager", "eager"))


def recorded(hour: Hour, *kinds: str) -> dict:
    """Traces for test data, of processes that run at the same time: what is read of the last one."""
    folder = hour.out / "traces"
    folder.mkdir(exist_ok=True)
    one = len(kinds) == 1
    files = [folder / (f"{kind}.json" if one else f"{kind}-{at}.json") for at, kind in enumerate(kinds)]
    with ThreadPoolExecutor(len(kinds)) as pool:
        commands = [("-m", "tests.gpu.traces", kind, str(file)) for kind, file in zip(kinds, files, strict=True)]
        done = list(pool.map(lambda command: hour.run(*command, fast=True), commands))
    if any(code for code, _ in done):
        return {"ok": False, "output": "".join(output for _, output in done)[-4000:]}
    counts = [printed(output) for _, output in done]
    return {"ok": all(count["device events"] > 0 for count in counts), **counts[-1]}


def printed(output: str) -> dict:
    """The JSON that a program printed; what torch says on stderr comes after it."""
    return json.JSONDecoder().raw_decode(output)[0]


def which(hour: Hour) -> str:
    """The half of the contract that is run."""
    return "stand_in or stand-in" if hour.stand_in else "device"


def second(hour: Hour) -> Iterator[Item]:
    """False alarms of unchanged code, and slowdowns of 5 and 10 % that are detected.

    `perfdl qualify` keeps each run, and the next call of the part goes on with those that are left.
    """

    def shape(hour: Hour) -> tuple[str, ...]:
        return SHORT if hour.stand_in else ("--perf-budget=5",)

    def record(hour: Hour) -> dict:
        folder = hour.out / "qualified"
        project(folder, "contiguous copy")
        code, output = hour.run("-m", "pytest", "--perf-update", "-q", *shape(hour), cwd=folder)
        return {"ok": True} if code == 0 else {"ok": False, "output": output[-4000:]}

    def qualify(hour: Hour) -> dict:
        folder = hour.out / "qualified"
        runs, slower, effects = (1, 1, (10,)) if hour.stand_in else (60, 20, (5, 10))
        wanted = ("-n", str(runs), "-m", str(slower), "--effects", ",".join(map(str, effects)))
        seconds = max(1, int(hour.seconds_left - SUMMARY_S))
        arguments = (*wanted, "--seconds", str(seconds), "test_step.py", "--", *shape(hour))
        code, output = hour.run("-m", "pytest_perfdl.cli", "qualify", *arguments, cwd=folder)
        if code:
            return {"ok": False, "output": output[-4000:]}
        _, table = hour.run("-m", "pytest_perfdl.cli", "qualify", "--table", "--json", cwd=folder)
        done = len((folder / "perf-qualify.jsonl").read_text().splitlines())
        left = runs + slower * len(effects) - done
        return {"ok": left == 0, "runs": done, "left": left, "results": printed(table)}

    yield Item("baseline of unchanged code", record)
    yield Item("unchanged and slower code", qualify)


def third(_: Hour) -> Iterator[Item]:
    """Regressions as they happen, each planted in a step; and what undoing one is predicted to gain."""
    for name, planted in PLANTED.items():
        yield Item(name, lambda hour, name=name: regression(hour, name), planted.needs_device)


def fourth(_: Hour) -> Iterator[Item]:
    """Rates against the data sheet, what a verdict takes, and what the profiler adds to a step."""

    def rates(hour: Hour) -> dict:
        file = hour.out / "machine.json"
        code, output = hour.run("-m", "pytest_perfdl.cli", "constants", "--device", "--again", "-o", str(file))
        return {"ok": code == 0, "output": output[-2000:], "rates": json.loads(file.read_text())["flops_per_s"]}

    yield Item("peak rates", rates, needs_device=True)
    yield Item("time to a verdict", lambda hour: regression(hour, "contiguous copy", equal=True))


def project(folder: Path, name: str) -> None:
    """A repository whose commit has the step, and whose tree has it still."""
    folder = fresh(folder)
    folder.mkdir(parents=True)
    files = {"conftest.py": CONFTEST, "test_step.py": TEST, "pytest.ini": INI, ".gitignore": IGNORED}
    files["step.py"] = source(PLANTED[name], name, head=False)
    for file, text in files.items():
        (folder / file).write_text(text)
    for arguments in (
        ("init", "--quiet"),
        ("config", "user.email", "author@example.org"),
        ("config", "user.name", "Author"),
        ("add", "--all"),
        ("commit", "--quiet", "-m", "base"),
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def regression(hour: Hour, name: str, *, equal: bool = False) -> dict:
    """The verdict on a step and its slower form, or on equal ones, and what is named for it."""
    folder = hour.out / "projects" / name.replace(" ", "-")
    project(folder, name)
    if not equal:
        (folder / "step.py").write_text(source(PLANTED[name], name, head=True))
    shape = SHORT if hour.stand_in else ("--perf-budget=40",)
    options = ("--perf-against=HEAD", *shape, "--perf-json=run.json", "--perf-traces=all", "-q")
    _, output = hour.run("-m", "pytest", *options, cwd=folder)
    (test,) = json.loads((folder / "run.json").read_text())["tests"]
    step = test["metrics"]["step_time"]
    expected = ("unchanged", "inconclusive") if equal else ("regressed", "suspect")
    causes = [line.strip() for line in output.splitlines() if line.strip().startswith("cause")]
    effect = step["effect"]
    # A rehearsal has few rounds: that the item runs, and the step is slower, is enough.
    seen = hour.stand_in and effect is not None and (equal or effect > REHEARSED)
    found = {"ok": test["verdict"] in expected or seen, "verdict": test["verdict"], "rounds": step["rounds"]}
    found |= {"effect": None if effect is None else f"{effect:+.1%}", "cause": causes[0] if causes else ""}
    (call,) = test["record"]["calls"]
    if equal:
        found["profiler overhead"] = f"{statistics.mean(call['profiled_ns']) / step['new'] - 1:+.1%}"
    elif (undoes := PLANTED[name].undoes) and effect is not None:
        found |= {"undone by": undoes, "gain": f"{effect / (1 + effect):.1%}"}
        found["predicted"] = predicted(hour, folder / "perf-report" / test["traces"][0]["new"], undoes)
    return found if found["ok"] else {**found, "output": output[-4000:]}


def predicted(hour: Hour, trace: Path, optimization: str) -> str:
    """The gain of an optimization as `perfdl whatif` predicts it from a trace, or why it does not."""
    code, output = hour.run("-m", "pytest_perfdl.cli", "whatif", str(trace), "--apply", optimization, "--json")
    if code:
        raise RuntimeError(f"perfdl whatif {trace}: exit code {code}: {output[-1000:]}")
    (answer,) = printed(output)["whatif"]
    return answer["reason"] if answer["gain"] is None else f"{answer['gain']:.1%}"


SUMMARY_S = 30
"""Seconds at the end of part 2 in which `perfdl qualify` begins no run that would not end in time."""
SHORT = ("--perf-budget=3", "--perf-steps=4", "--perf-warmup=2", "--perf-repeats=1", "--perf-memory=off")
"""How much is measured on the stand-in."""
REHEARSED = 0.1
"""Slowdown by which a regression is planted on the stand-in, at least."""
PARTS = {1: first, 2: second, 3: third, 4: fourth}


def main() -> int:
    """Run one part; 1 if something failed or is left."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", type=int, choices=sorted(PARTS), required=True)
    parser.add_argument("--stand-in", action="store_true", help="rehearse without a GPU")
    parser.add_argument("--out", type=Path, help="folder of the results")
    arguments = parser.parse_args()
    name = "stand-in" if arguments.stand_in else "device"
    hour = Hour((arguments.out or ROOT / "build" / f"gpu-{name}").resolve(), arguments.stand_in)
    hour.out.mkdir(parents=True, exist_ok=True)
    complete = hour.part(arguments.part, PARTS[arguments.part](hour))
    print(f"results: {hour.out / 'summary.md'}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
