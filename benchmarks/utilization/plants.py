"""More work, or the same work done worse: is the report's sentence the right one, and does the metric fall?

    python benchmarks/utilization/plants.py                    # some 20 minutes, prints Markdown
    python benchmarks/utilization/plants.py --only sleep wider
    python benchmarks/utilization/plants.py --unchanged        # nothing planted, utilization held to 2 points

One run of `pytest --perf --perf-against HEAD` on the tests of `scratch/`, a git repository whose working tree has all
of them slower. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TEMPLATE = HERE / "scratch"
_AUTHOR = ("-c", "user.name=plants", "-c", "user.email=plants@example.org", "-c", "commit.gpgsign=false")
MORE, DEARER, TRAFFIC, WORSE = "more work", "dearer type", "more traffic or calls", "done worse"


@dataclass(frozen=True)
class Expected:
    """What must be said of a plant, written down before it was measured."""

    kind: str
    falls: str = ""
    """A metric that gets smaller; none where more work may be done as well as the rest."""


EXPECTED: Mapping[str, Expected] = {
    "transposed_operands": Expected(WORSE, "roofline"),
    "channels_last_lost": Expected(WORSE, "roofline"),
    "unaligned_sizes": Expected(WORSE, "roofline"),
    "threads_oversubscribed": Expected(WORSE, "roofline"),
    "sleep": Expected(WORSE, "flops_utilization"),
    "float64": Expected(DEARER, "flops_utilization"),
    "bfloat16_lost": Expected(DEARER, "flops_utilization"),
    "batch_split_in_four": Expected(TRAFFIC, "flops_utilization"),
    "loop_over_parameters": Expected(TRAFFIC, "flops_utilization"),
    "fusion_lost": Expected(TRAFFIC, "flops_utilization"),
    "second_forward": Expected(MORE),
    "one_layer_more": Expected(MORE),
    "wider": Expected(MORE),
    "longer_sequence": Expected(MORE),
    "larger_batch": Expected(MORE),
    "checkpointing": Expected(MORE),
    "gradients_of_the_frozen": Expected(MORE),
    "another_loss": Expected(MORE),
    "larger_kernel": Expected(MORE),
    "more_channels": Expected(MORE),
    "larger_vocabulary": Expected(MORE),
    "in_the_loop": Expected(MORE),
}
HELD = ("flops_utilization", "bandwidth_utilization", "roofline", "host_overhead")
"""Metrics that are held to 2 points where nothing is planted."""


class PlantsError(RuntimeError):
    """git or pytest failed; the message holds what they said."""


def main() -> int:
    """Measure and print."""
    options = arguments()
    try:
        with tempfile.TemporaryDirectory() as folder:
            tests = measured(Path(folder), options)
    except PlantsError as error:
        print(error, file=sys.stderr)
        return 1
    for line in held(tests) if options.unchanged else table(tests):
        print(line)
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=EXPECTED, default=[], metavar="PLANT", help="these alone")
    parser.add_argument("--unchanged", action="store_true", help="plant nothing")
    parser.add_argument("--report", type=Path, metavar="DIR", help="keep pytest's report here")
    return parser.parse_args()


def measured(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the run file says of each test.

    Raises
    ------
    PlantsError
    """
    prepare(folder)
    plant = folder / "src" / "plant.py"
    plant.write_text(plant.read_text().replace("False", "False  " if options.unchanged else "True"))
    report = (options.report or folder / "perf-report").resolve()
    command = [sys.executable, "-m", "pytest", "-q", "--perf", "--perf-against=HEAD", f"--perf-report={report}"]
    command += [f"--perf-limit={name}:2pp" for name in HELD if options.unchanged]
    command += [f"tests/test_plants.py::test_{name}" for name in options.only] or ["tests/test_plants.py"]
    run(folder, *command, codes=(0, 1), shown=True)
    return list(json.loads((report / "run.json").read_text())["tests"])


def prepare(folder: Path, threads: Sequence[int] = (1,)) -> None:
    """Make the repository, with the limits of this machine among its baselines.

    Raises
    ------
    PlantsError
    """
    shutil.copytree(TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "gitignore"))
    shutil.copy(TEMPLATE / "gitignore", folder / ".gitignore")
    run(folder, "git", "init", "--quiet")
    for number in threads:
        run(
            folder,
            sys.executable,
            "-m",
            "pytest_perfdl.cli",
            "constants",
            "--dir",
            "baselines",
            "--threads",
            str(number),
        )
    run(folder, "git", *_AUTHOR, "add", "--all")
    run(folder, "git", *_AUTHOR, "commit", "--quiet", "-m", "The code")


def run(folder: Path, *command: str, codes: Sequence[int] = (0,), shown: bool = False) -> None:
    """One command in the repository.

    Raises
    ------
    PlantsError
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTEST_"))}
    stream = sys.stderr if shown else subprocess.PIPE
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode not in codes:
        raise PlantsError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout or ''}")


def table(tests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of a Markdown table, and how many are right."""
    yield "| plant | step | expected | said | most in | right | falls | base | head | fell |"
    yield "|---|---:|---|---|---|---|---|---:|---:|---|"
    right = fell = wanted = 0
    for test in tests:
        name = test["id"].rpartition("::test_")[2]
        expected = EXPECTED[name]
        work = test["work"][0] if test["work"] else {"kind": f"({test['verdict']})", "operator": ""}
        effect = test["metrics"].get("step_time", {}).get("effect")
        cells = [name, "" if effect is None else f"{effect:+.0%}", expected.kind, work["kind"], work["operator"]]
        right += work["kind"] == expected.kind
        cells.append("yes" if work["kind"] == expected.kind else "NO")
        if expected.falls:
            metric = test["metrics"].get(expected.falls, {"base": None, "new": None})
            known = metric["base"] is not None and metric["new"] is not None
            wanted += 1
            fell += known and metric["new"] < metric["base"]
            cells += [expected.falls, *(f"{metric[side]:.1f} %" if known else "absent" for side in ("base", "new"))]
            cells.append("yes" if known and metric["new"] < metric["base"] else "NO")
        else:
            cells += ["", "", "", ""]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield f"{right} of {len(tests)} sentences are right; {fell} of {wanted} metrics fell"


def held(tests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Tests of unchanged code of which a metric of utilization was judged worse."""
    worse = 0
    for test in tests:
        found = {name: each for name, each in test["metrics"].items() if name in HELD}
        bad = [name for name, each in found.items() if each["verdict"] in ("regressed", "suspect")]
        worse += bool(bad)
        verdicts = ", ".join(f"{name} {each['verdict']} {each['effect'] or 0:+.1%}" for name, each in found.items())
        yield f"{test['id'].rpartition('::test_')[2]}: {test['verdict']}; {verdicts}"
    yield f"{len(tests) - worse} of {len(tests)} unchanged tests have nothing judged worse at 2 points"


if __name__ == "__main__":
    sys.exit(main())
