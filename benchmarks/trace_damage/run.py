"""Damaged traces of known steps: is every figure right, or is it said why not?

    python benchmarks/trace_damage/run.py                     # 2,000 damaged and 500 undamaged traces, five minutes
    python benchmarks/trace_damage/run.py --damaged 72 --undamaged 30
    python benchmarks/trace_damage/run.py --seed 1234         # one damaged trace, all that was found of it
    python benchmarks/trace_damage/run.py --halves            # only the two halves of 20 pipelined jobs

Prints Markdown; every wrong figure of which nothing is said has its seed. Exit code 1 if there is one, or a traceback.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import halves
from common.tables import table
from damages import KINDS, case, undamaged_case
from oracle import Outcome, judge_damaged, judge_undamaged

DAMAGED, UNDAMAGED = 2000, 500
SHOWN = 5
"""Traces of a kind whose wrong figures are printed."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--damaged", type=int, default=DAMAGED, help="damaged traces (default: %(default)s)")
    parser.add_argument("--undamaged", type=int, default=UNDAMAGED, help="undamaged traces (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="only this damaged trace, with its file kept")
    parser.add_argument("--halves", action="store_true", help="only the halves of pipelined jobs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result there too")
    return parser.parse_args(arguments)


def progress(done: int, of: int, what: str) -> None:
    """Rewrite a line on a terminal, else one line for every tenth."""
    if sys.stderr.isatty():
        print(f"\r{what}: {done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)
    elif done % max(1, of // 10) == 0:
        print(f"{what}: {done} of {of}", file=sys.stderr, flush=True)


def damaged(count: int, folder: Path) -> dict[str, list[tuple[int, Outcome]]]:
    """What came of each, by kind, with its seed."""
    found: dict[str, list[tuple[int, Outcome]]] = {each.kind: [] for each in KINDS}
    for seed in range(count):
        damage, made, done = case(seed)
        found[damage.kind].append((seed, judge_damaged(damage, made, done, folder)))
        progress(seed + 1, count, "damaged")
    return found


def undamaged(count: int, folder: Path) -> dict[str, list[tuple[int, Outcome]]]:
    """The same of jobs."""
    found: dict[str, list[tuple[int, Outcome]]] = {}
    for seed in range(count):
        made = undamaged_case(seed)
        found.setdefault(made.shape.name, []).append((seed, judge_undamaged(made, folder)))
        progress(seed + 1, count, "undamaged")
    return found


def _of(flags: Sequence[bool | None]) -> str:
    """How many are so, of those of which it can be said."""
    known = [each for each in flags if each is not None]
    return f"{sum(known)} of {len(known)}" if known else ""


def damaged_table(found: dict[str, list[tuple[int, Outcome]]]) -> Iterator[str]:
    """A row for each kind of damage, and one for all."""
    head = ("damage", "traces", "wrong and unsaid", "tracebacks", "undamaged steps shown", "their kernels")
    head += ("right without a line", "kind named")
    lines = []
    rows = {name: [each for _, each in outcomes] for name, outcomes in found.items() if outcomes}
    for name, each in {**rows, "**all**": [one for row in rows.values() for one in row]}.items():
        cells = [
            len(each),
            sum(bool(one.wrong) for one in each),
            sum(bool(one.traceback) for one in each),
            _of([one.shown for one in each]),
            _of([one.kernels_shown for one in each]),
            sum(one.named is None and not one.traceback for one in each),
            _of([one.named for one in each]),
        ]
        lines.append((name, *cells))
    return table(head, lines, numbers=True)


def undamaged_table(found: dict[str, list[tuple[int, Outcome]]]) -> Iterator[str]:
    """A row for each kind of job, and one for all."""
    lines = []
    rows = {name: [each for _, each in outcomes] for name, outcomes in found.items()}
    for name, each in {**rows, "**all**": [one for row in rows.values() for one in row]}.items():
        counts = [
            len(each),
            sum(bool(one.wrong) for one in each),
            sum(bool(one.traceback) for one in each),
            sum(bool(one.claims) for one in each),
            sum(bool(one.lines) and not one.claims for one in each),
        ]
        lines.append((name, *counts))
    head = ("job", "traces", "figures wrong", "tracebacks", "damage claimed", "steps said to differ")
    return table(head, lines, numbers=True)


def details(found: dict[str, list[tuple[int, Outcome]]]) -> Iterator[str]:
    """The first wrong ones of each kind."""
    for name, outcomes in found.items():
        bad = [(seed, each) for seed, each in outcomes if each.wrong or each.traceback or each.claims]
        for seed, each in bad[:SHOWN]:
            what = [*each.wrong, *each.claims, *_ended(each.traceback)]
            yield f"- {name}, seed {seed}: {'; '.join(what[:3])}{'; ...' if len(what) > 3 else ''}"
        if len(bad) > SHOWN:
            yield f"- {name}: {len(bad) - SHOWN} more, seeds {', '.join(str(seed) for seed, _ in bad[SHOWN:][:20])}"


def _ended(text: str) -> list[str]:
    """The error of a traceback, and where it was raised."""
    lines = text.strip().splitlines()
    places = [line.strip() for line in lines if line.strip().startswith("File ")]
    return [f"{lines[-1]} ({places[-1]})" if places else lines[-1]] if lines else []


def one(seed: int) -> int:
    """All that was found of one damaged trace."""
    folder = Path(tempfile.mkdtemp(prefix="trace-damage-"))
    damage, made, done = case(seed)
    found = judge_damaged(damage, made, done, folder)
    print(f"{damage.kind}: {made.shape}\n{folder}/bad.json\nintact: {[sorted(each) for each in done.intact]}")
    for truth in done.truths:
        print(f"true step times: {dict(truth.walls)}\ntrue kernel times: {dict(truth.kernel_ns)}")
    for name in ("off", "wrong", "lines"):
        print(f"{name}:", *getattr(found, name), sep="\n  ")
    print(f"shown: {found.shown}, kernels: {found.kernels_shown}, named: {found.named}\n{found.traceback}")
    return int(bool(found.wrong or found.traceback))


def report(arguments: argparse.Namespace, folder: Path, failed: list[str]) -> Iterator[str]:
    """All tables; what must not be goes to `failed`."""
    if not arguments.halves:
        hurt, whole = damaged(arguments.damaged, folder), undamaged(arguments.undamaged, folder)
        for found in (hurt, whole):
            failed += list(details(found))
        yield from ("## Damaged", "", *damaged_table(hurt), "", *details(hurt), "")
        yield from ("## Undamaged", "", *undamaged_table(whole), "", *details(whole), "")
    yield from ("## Two halves of a pipelined job", "", *table(halves.HEAD, halves.rows(folder, failed), numbers=True))


def main() -> int:
    arguments = parse()
    if arguments.seed is not None:
        return one(arguments.seed)
    lines, failed = [], []
    with tempfile.TemporaryDirectory(prefix="trace-damage-") as name:
        for line in report(arguments, Path(name), failed):
            print(line, flush=True)
            lines.append(line)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
