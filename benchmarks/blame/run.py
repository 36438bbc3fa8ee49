"""Does blame name what was planted, in the right module and on the right line, and nothing on unchanged code?

Compares the models of `scratch/` with themselves, changed by each plant of `suite.py`, in turns, so that the
machine's drift meets all alike. Every comparison is appended to a JSON-lines file as soon as it ends; started again,
the script does only what is missing, down to single rounds. At the end, or with `--table` at once, it prints how the
comparisons stand to what is demanded.

    python benchmarks/blame/run.py                            # each plant once, about a minute each
    python benchmarks/blame/run.py --count 5 --unchanged 5    # hours; shows the time left
    python benchmarks/blame/run.py --end-to-end               # by pytest on a scratch repository, minutes each
    python benchmarks/blame/run.py --table
    python benchmarks/blame/run.py --docs                     # writes results into docs/explanation/benchmarks.md
    python benchmarks/blame/run.py --again                    # asks anew of what was measured, after a change of blame
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE)]

from common import kept
from common.projects import ProjectError
from common.tables import write_between
from scoring import UNCHANGED, ComparingError, Comparison, Mode, Task, keep, latest, read, score, write
from suite import MODELS, PLANTS
from totals import tables

from pytest_perfdl.model.units import format_quantity

RESULTS = ROOT / "perf-report" / "blame.jsonl"
MEASURED = ROOT / "perf-report" / "blame"
"""Where rounds are kept."""
DOCS = ROOT / "docs" / "explanation" / "benchmarks.md"
MARKERS = ("<!-- blame-table -->", "<!-- /blame-table -->")
"""Between these lines of it the tables stand."""


def plan(mode: Mode, plants: Sequence[str], count: int, unchanged: int) -> list[Task]:
    """All comparisons wanted, in turns: each pass holds one of every kind that still wants one."""
    tasks = []
    for number in range(max(count, unchanged)):
        if number < count:
            tasks += [Task(mode, name, PLANTS[name].model, number) for name in plants]
        if number < unchanged:
            tasks += [Task(mode, UNCHANGED, model, number) for model in MODELS]
    return tasks


def left(todo: Iterable[Task], done: Iterable[Comparison]) -> str:
    """The time that the rest will take, from comparisons of the same mode and model."""
    return kept.time_left(
        ((task.mode, task.model) for task in todo),
        (((each.task.mode, each.task.model), each.seconds) for each in done),
    )


def words(found: Comparison) -> str:
    """A comparison in a line: "+3.1%, right: aten::gelu in ConvNet.stages, +1.20 ms"."""
    effect = f"{found.timed.effect:+.1%}" if found.timed else found.verdict
    if not found.causes:
        return f"{effect}, nothing named"
    first = found.causes[0]
    verdict = "named"
    if found.right is not None:
        wrong = [
            what
            for what, right in (
                ("name", found.right.name),
                ("module", found.right.module),
                ("line", found.right.line is not False or not PLANTS[found.task.plant].python),
            )
            if not right
        ]
        verdict = f"WRONG {' and '.join(wrong)}" if wrong else "right"
    where = " at ".join(filter(None, (first.module, first.line)))
    place = f" in {where}" if where else ""
    return f"{effect}, {verdict}: {first.name}{place}, {format_quantity(first.delta_ns, 'ns', signed=True)}"


def missing(done: Iterable[Comparison], options: argparse.Namespace) -> list[Task]:
    """Comparisons wanted that were not made, or in fewer rounds."""
    mode: Mode = "end to end" if options.end_to_end else "quick"
    known = {each.task for each in done if options.end_to_end or each.rounds >= options.rounds}
    return [task for task in plan(mode, options.plant, options.count, options.unchanged) if task not in known]


def make(todo: Sequence[Task], done: list[Comparison], options: argparse.Namespace) -> None:
    """Make these comparisons and keep each.

    Raises
    ------
    ComparingError
    """
    with tempfile.TemporaryDirectory(prefix="perfdl-blame-") as temporary:
        compare = _comparer(options, Path(temporary))
        for position, task in enumerate(todo):
            found = score(compare(task))
            keep(options.out, found)
            done.append(found)
            where = f"[{position + 1}/{len(todo)}] {task}"
            rest = left(todo[position + 1 :], done)
            print(f"{where}: {words(found)} ({found.seconds:.0f} s), {rest}", flush=True)


def _comparer(options: argparse.Namespace, folder: Path) -> Callable[[Task], Comparison]:
    if options.end_to_end:
        from end_to_end import Repository

        return Repository(folder / "project").compare

    from comparison import judged
    from measuring import measure

    return lambda task: judged(measure(task, options.rounds, options.measured))


def again(done: Sequence[Comparison], folder: Path) -> list[Comparison]:
    """The comparisons judged anew where their rounds are kept."""
    from comparison import judged
    from measuring import kept as measured_before

    found = []
    for each in done:
        measured = measured_before(each.task, folder) if each.task.mode == "quick" else None
        found.append(each if measured is None else score(judged(measured)))
    return found


def document(page: Path, found: Sequence[Comparison]) -> None:
    """Write these tables between the markers of a page, their headings below the page's own."""
    write_between(page, *MARKERS, f"\n{tables(found).replace('## ', '### ').strip()}\n")


def main() -> int:
    """Do what is missing, print the tables; 0 when all comparisons were made."""
    options = arguments()
    done = latest(read(options.out))
    if options.again:
        done = again(done, options.measured)
        write(options.out, done)
    elif options.docs:
        document(DOCS, done)
        print(f"wrote {DOCS}")
        return 0
    elif not options.table:
        try:
            make(missing(done, options), done, options)
        except (ComparingError, ProjectError) as error:
            print(error, file=sys.stderr)
            return 1
    print(tables(latest(done)))
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1, metavar="N", help="comparisons of each plant (1)")
    parser.add_argument(
        "--plant", nargs="+", choices=PLANTS, default=list(PLANTS), metavar="NAME", help="only these plants"
    )
    parser.add_argument("--unchanged", type=int, default=0, metavar="N", help="of each model with itself (0)")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="pairs of processes in a comparison (6)")
    parser.add_argument("--end-to-end", action="store_true", help="by pytest --perf-against on a scratch repository")
    parser.add_argument("--table", action="store_true", help="only print what was found so far")
    parser.add_argument(
        "--docs", action="store_true", help="only write what was found so far into docs/explanation/benchmarks.md"
    )
    parser.add_argument("--again", action="store_true", help="judge anew what was measured, and print it")
    parser.add_argument("--measured", type=Path, default=MEASURED, metavar="DIR", help="where rounds are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help="where comparisons are kept")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more: intervals are over rounds")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; started again, it goes on from here")
