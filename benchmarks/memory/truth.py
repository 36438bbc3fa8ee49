"""Is what `plants.py` calls the truth true? Held against torch's profiler, without any code of pytest-perfdl.

    python benchmarks/memory/truth.py                      # every plant, about 3 minutes
    python benchmarks/memory/truth.py -k untied decoder    # those whose name holds one of these

Each side runs in a process of its own: the model's test, with a stand-in for the fixture, under `torch.profiler` with
`profile_memory=True` from before the model is made. The running sum of its `[memory]` events is thus all that tensors
take, whoever holds them; tensors that only a graph of autograd holds could not be found from Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from plants import MODELS, PLANTS, Plant, PlantError  # noqa: E402

STEPS = 6
LEAST_PEAK, LEAST_GROWTH = 1024**2, 64 * 1024
T = TypeVar("T")


class TruthError(RuntimeError):
    """A side could not be measured; the message holds what it said."""


@dataclass(frozen=True)
class Side:
    """What torch's profiler says of a model's last steps."""

    peak: int
    """Most bytes alive in the last step."""
    before: int
    """Most bytes alive in the step before it."""
    end: int
    """Bytes alive at the end of the last step."""
    end_before: int
    """Bytes alive at the end of the step before it."""
    operators: int
    """Operators in the last step, nested ones included."""
    at: str
    """Operators that the peak fell into, the outermost first."""


@dataclass(frozen=True)
class Checked:
    """A plant beside what was measured."""

    plant: Plant
    base: Side
    new: Side

    @property
    def growth(self) -> int:
        """Bytes that a step keeps and did not keep before."""
        return (self.new.end - self.new.end_before) - (self.base.end - self.base.end_before)

    @property
    def delta(self) -> int:
        """By how much the peak grew; of a plant that grows, from one step to the next."""
        if self.plant.grows_per_step:
            return (self.new.peak - self.new.before) - (self.base.peak - self.base.before)
        return self.new.peak - self.base.peak

    @property
    def operators(self) -> int:
        """Operators of a step that came, less those that went."""
        return self.new.operators - self.base.operators

    @property
    def wrong(self) -> tuple[str, ...]:
        """What is not as `plants.py` has it."""
        plant = self.plant
        found = []
        if abs(self.delta - plant.delta_bytes) > plant.tolerance_bytes:
            found.append("delta")
        if self.growth != plant.grows_per_step:
            found.append("growth")
        if bool(self.operators) != plant.changes_operators:
            found.append("operators")
        if plant.grows_per_step < LEAST_GROWTH if plant.grows_per_step else self.delta < LEAST_PEAK:
            found.append("too small")
        return tuple(found)


class Stand:
    """In place of the fixture `perf`: runs a few steps, each in a range of the profiler."""

    def __call__(self, step: Callable[..., T], *args: Any) -> T:
        """Call the step as often as is measured."""
        for _ in self.steps(range(STEPS)):
            result = step(*args)
        return result

    def steps(self, iterable: Iterable[T]) -> Iterator[T]:
        """The first elements, each with the range of its step around it."""
        from torch.profiler import record_function

        source = iter(iterable)
        for number in range(STEPS):
            with record_function(f"step {number}"):
                yield next(source)


def side(folder: Path) -> Side:
    """Run the model's test in this process, and read what the profiler saw."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(1)
    sys.path.insert(0, str(folder))
    import test_perf

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        test_perf.test_step(Stand())
    events = profiler.profiler.kineto_results.events()
    steps = sorted((each.start_ns(), each.end_ns()) for each in events if each.name().startswith("step "))
    operators = [each for each in events if each.name().startswith("aten::")]
    changes = sorted(
        ((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]"), key=lambda change: change[0]
    )
    levels = []
    level = 0
    for when, size in changes:
        level += size
        levels.append((when, level))

    def highest(step: tuple[int, int]) -> tuple[int, int]:
        return max(((level, when) for when, level in levels if step[0] <= when <= step[1]))

    def end(step: tuple[int, int]) -> int:
        return [level for when, level in levels if when <= step[1]][-1]

    *_, before, last = steps
    peak, when = highest(last)
    around = sorted((each.start_ns(), each.name()) for each in operators if each.start_ns() <= when <= each.end_ns())
    return Side(
        peak=peak,
        before=highest(before)[0],
        end=end(last),
        end_before=end(before),
        operators=sum(last[0] <= each.start_ns() <= last[1] for each in operators),
        at=" > ".join(name for _, name in around) or f"{(when - last[0]) / (last[1] - last[0]):.0%} of the step",
    )


def measured(model: str, plant: Plant | None) -> Side:
    """The model with a plant in it, or unchanged, in a fresh process.

    Raises
    ------
    PlantError
    TruthError
    """
    with tempfile.TemporaryDirectory(prefix="memory-truth-") as temporary:
        folder = Path(temporary) / model
        shutil.copytree(MODELS / model, folder, ignore=shutil.ignore_patterns("__pycache__"))
        if plant is not None:
            plant.plant(folder)
            plant.places(folder)
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--side", str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise TruthError(f"{plant.name if plant else model}: {done.stderr.strip()}")
    return Side(**json.loads(done.stdout.splitlines()[-1]))


def lines(checked: Sequence[Checked]) -> Iterator[str]:
    """A Markdown table, and how many are true."""
    yield "| plant | delta by hand | measured | growth by hand | measured | operators | true | peak falls into |"
    yield "|---|---:|---:|---:|---:|---:|---|---|"
    for each in checked:
        plant = each.plant
        cells = [
            plant.name,
            f"{plant.delta_bytes:,}",
            f"{each.delta:,}",
            f"{plant.grows_per_step:,}",
            f"{each.growth:,}",
        ]
        cells += [f"{each.operators:+}", f"NO: {', '.join(each.wrong)}" if each.wrong else "yes", each.new.at]
        yield f"| {' | '.join(cells)} |"
    yield ""
    same = sum(not each.plant.changes_operators for each in checked)
    growing = sum(bool(each.plant.grows_per_step) for each in checked)
    true = sum(not each.wrong for each in checked)
    yield f"{true} of {len(checked)} are true; {same} change no operator count; {growing} grow with every step"


def main() -> int:
    """Check; 0 when all is true."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", nargs="+", default=[""], metavar="TEXT", help="plants whose name holds one of these")
    parser.add_argument("--side", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(asdict(side(options.side))))
        return 0
    chosen = [plant for plant in PLANTS if any(text in plant.name for text in options.k)]
    try:
        bases = {model: measured(model, None) for model in dict.fromkeys(plant.model for plant in chosen)}
        checked = [Checked(plant, bases[plant.model], measured(plant.model, plant)) for plant in chosen]
    except (PlantError, TruthError) as error:
        print(error, file=sys.stderr)
        return 2
    for model, base in bases.items():
        print(f"{model}: {base.peak:,} bytes at the peak, {base.operators} operators; falls into {base.at}")
    print()
    for line in lines(checked):
        print(line)
    return int(any(each.wrong for each in checked))


if __name__ == "__main__":
    sys.exit(main())
