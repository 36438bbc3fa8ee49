"""Is a memory regression explained by what was planted: its line, module, category and bytes?

    python benchmarks/memory/run.py                          # every plant once, about a minute each
    python benchmarks/memory/run.py -k untied decoder        # those whose name holds one of these
    python benchmarks/memory/run.py --unchanged 20           # nothing planted: nothing may be named
    python benchmarks/memory/run.py --keep DIR               # keeps what is found of each
    python benchmarks/memory/run.py --keep DIR --again       # scores what is kept, and measures nothing

For each plant: a scratch git repository of the model, the plant in its working tree, and
`pytest --perf --perf-against=HEAD` on it. What a run file lacks counts as a miss.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common.projects import ProjectError, copy, run_pytest
from common.tables import table
from plants import MODELS, NAMES, PLANTS, Plant, PlantError

_LINE = re.compile(r"(?P<file>[^\s():]+\.py)[(:](?P<number>\d+)")
LINES_WANTED, GROWTH_WANTED = 22, 6


@dataclass(frozen=True)
class Score:
    """What is right of an explanation; None where it was not asked for."""

    line: bool
    module: bool
    category: bool
    bytes: bool
    closes: bool
    """Whether the rows of both accounts sum up to their peaks."""
    growth: bool | None


@dataclass(frozen=True)
class Outcome:
    """A plant, what was said of it, and what of that is right."""

    plant: Plant
    score: Score
    said: str


def accounts(test: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The accounts of both sides' peaks, empty where there are none; of several calls the first's."""
    found = test.get("memory") or {}
    if isinstance(found, list):
        found = found[0]
    return found.get("base") or {}, found.get("new") or {}


def causes(test: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What memory is said to be due to, the first first."""
    return [cause for cause in test.get("blame") or () if cause.get("kind") == "memory"]


def growths(test: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is said to be kept by every step."""
    return [each for each in test.get("growth") or () if isinstance(each, dict)]


def named_at(entry: Mapping[str, Any], places: Iterable[tuple[str, int]]) -> bool:
    """Whether an entry's line is one of these.

    >>> named_at({"line": "models/gpt.py(43): attention"}, [("gpt.py", 43)])
    True
    """
    found = _LINE.search(entry.get("line") or "")
    return found is not None and (Path(found["file"]).name, int(found["number"])) in tuple(places)


def closes(account: Mapping[str, Any]) -> bool:
    """Whether nothing of a peak is left over."""
    rows = account.get("rows")
    return bool(rows) and account.get("peak_bytes") == sum(row.get("bytes", 0) for row in rows)


def score(plant: Plant, test: Mapping[str, Any], places: Sequence[tuple[str, int]]) -> Score:
    """What is right of what a run file's entry says.

    Several causes may be of the plant, such as a line for each layer of a graph: its bytes are those of the first, or
    of all that name one of its lines.
    """
    base, new = accounts(test)
    found = causes(test)
    first: Mapping[str, Any] = found[0] if found else {}
    wanted = plant.delta_bytes
    if plant.grows_per_step:
        # How many steps came before the one that was looked at is not for us to know.
        wanted = new.get("peak_bytes", 0) - base.get("peak_bytes", 0)
    sizes = (first.get("bytes", 0), sum(cause.get("bytes", 0) for cause in found if named_at(cause, places)))
    growth = None
    if plant.grows_per_step:
        growth = any(
            named_at(each, places) and abs(each.get("bytes", 0) - plant.grows_per_step) <= plant.tolerance_bytes
            for each in growths(test)
        )
    category = str(first.get("category") or "").rstrip("s")
    module = first.get("module")
    return Score(
        line=named_at(first, places),
        module=module is not None and any(fnmatchcase(module, pattern) for pattern in plant.module or ("",)),
        category=category in {each.rstrip("s") for each in plant.category},
        bytes=any(size and abs(size - wanted) <= plant.tolerance_bytes for size in sizes),
        closes=closes(base) and closes(new),
        growth=growth,
    )


def words(test: Mapping[str, Any]) -> str:
    """What a run file's entry says first: "+1,048,576 parameters, GPT.head, model.py(71): GPT.__init__"."""
    parts = []
    for cause in causes(test)[:1]:
        place = f"{cause.get('module') or 'no module'}, {cause.get('line') or 'no line'}"
        parts.append(f"{cause.get('bytes', 0):+,} {cause.get('category')}, {place}")
    parts += [f"grows by {each.get('bytes', 0):,} a step at {each.get('line')}" for each in growths(test)[:1]]
    return "; ".join(parts) or f"nothing named ({test.get('verdict')})"


def measured(folder: Path, kept: Path | None) -> Mapping[str, Any]:
    """What the run file says of the repository's test.

    Raises
    ------
    ProjectError
    """
    (test,) = run_pytest(folder, "--perf", "--perf-against=HEAD", "test_perf.py")
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(test))
    return test


def outcome(plant: Plant, options: argparse.Namespace) -> Outcome:
    """Plant, measure and score; a run that failed is a miss.

    Raises
    ------
    PlantError
    """
    kept = options.keep and options.keep / f"{plant.name}.json"
    with tempfile.TemporaryDirectory(prefix="memory-") as temporary:
        folder = Path(temporary) / "project"
        try:
            copy(MODELS / plant.model, folder, ".")
            plant.plant(folder)
            places = plant.places(folder)
            test = json.loads(kept.read_text()) if options.again else measured(folder, kept)
        except (ProjectError, OSError) as error:
            print(error, file=sys.stderr)
            return Outcome(plant, score(plant, {}, ()), "failed")
    return Outcome(plant, score(plant, test, places), words(test))


HEAD = ("plant", "operators", "line", "module", "category", "bytes", "closes", "growth", "delta", "said first")


def rows(outcomes: Sequence[Outcome]) -> Iterator[Sequence[str]]:
    """A row for each plant."""
    for each in outcomes:
        found = each.score
        plant = each.plant
        cells = [plant.name, "change" if plant.changes_operators else "the same"]
        cells += [
            "" if right is None else "yes" if right else "NO"
            for right in (found.line, found.module, found.category, found.bytes, found.closes, found.growth)
        ]
        yield *cells, f"{plant.delta_bytes:,}", each.said


def totals(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """How the totals stand to what is asked."""
    total = len(outcomes)
    scores = [each.score for each in outcomes]
    grown = [each.growth for each in scores if each.growth is not None]
    asked = f"; asked for: {LINES_WANTED}" if total == len(PLANTS) else ""
    yield f"line right: {sum(each.line for each in scores)} of {total}{asked}"
    yield f"module right: {sum(each.module for each in scores)} of {total}; asked for: all"
    yield f"category right: {sum(each.category for each in scores)} of {total}"
    yield f"bytes within an allocation: {sum(each.bytes for each in scores)} of {total}"
    yield f"accounts that close: {sum(each.closes for each in scores)} of {total}"
    yield f"growth found: {sum(grown)} of {len(grown)}; asked for: all"


def unchanged(options: argparse.Namespace) -> int:
    """Measure models with themselves; 0 when no memory is named."""
    named = failed = 0
    for number in range(options.unchanged):
        model = NAMES[number % len(NAMES)]
        with tempfile.TemporaryDirectory(prefix="memory-") as temporary:
            folder = Path(temporary) / "project"
            try:
                copy(MODELS / model, folder, ".")
                # Without a change of the text, a run could know that both sides are the same.
                with (folder / "model.py").open("a") as file:
                    file.write("# The same.\n")
                test = measured(folder, options.keep and options.keep / f"unchanged-{model}-{number}.json")
            except ProjectError as error:
                failed += 1
                print(error, file=sys.stderr)
                continue
        named += bool(causes(test) or growths(test))
        print(f"[{number + 1}/{options.unchanged}] {model}: {words(test)}", flush=True)
    print(f"named on unchanged code: {named} of {options.unchanged}; asked for: 0")
    if failed:
        print(f"{failed} runs failed")
    return int(bool(named or failed))


def met(outcomes: Sequence[Outcome]) -> bool:
    """Whether all that is asked for was reached."""
    scores = [each.score for each in outcomes]
    missed = sum(not each.line for each in scores)
    return (
        missed <= len(PLANTS) - LINES_WANTED
        and all(each.module and each.closes for each in scores)
        and all(each.growth is not False for each in scores)
    )


def main() -> int:
    """Measure and print; 0 when what is asked for was reached."""
    options = arguments()
    if options.unchanged:
        return unchanged(options)
    chosen = [plant for plant in PLANTS if any(text in plant.name for text in options.k)]
    outcomes = []
    for position, plant in enumerate(chosen):
        started = time.monotonic()
        try:
            found = outcome(plant, options)
        except PlantError as error:
            print(error, file=sys.stderr)
            return 2
        outcomes.append(found)
        seconds = time.monotonic() - started
        print(
            f"[{position + 1}/{len(chosen)}] {plant.name}: {found.said} ({seconds:.0f} s)", file=sys.stderr, flush=True
        )
    for line in (*table(HEAD, rows(outcomes)), "", *totals(outcomes)):
        print(line)
    return int(not met(outcomes))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", nargs="+", default=[""], metavar="TEXT", help="plants whose name holds one of these")
    parser.add_argument("--unchanged", type=int, nargs="?", const=20, default=0, metavar="N", help="plant nothing (20)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what is found here")
    parser.add_argument("--again", action="store_true", help="score what is kept, and measure nothing")
    options = parser.parse_args()
    if options.again and not options.keep:
        parser.error("--again needs --keep")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")
