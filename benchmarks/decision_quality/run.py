"""How good are the decisions? Ours beside other tools' rules on one recording, as one table.

    python benchmarks/decision_quality/run.py                # a few minutes, prints Markdown
    python benchmarks/decision_quality/run.py --readme       # puts the table into README.md

`record.py` made the recording, `rules.py` holds the other tools' rules with their sources, `replay.py` says how
decisions are drawn. The same recording and seed give the same table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

from recording import Process, Round, Run, unpack  # noqa: E402
from replay import UNCHANGED, Decide, NotRecorded, Pool, Tally, other, our_against, our_gate, our_unpaired, tally  # noqa: E402
from rules import RULES  # noqa: E402

from pytest_perfdl.limits import BUILT_IN, Limits  # noqa: E402

PACKED = HERE / "data" / "recorded.json.gz"
MARKERS = ("<!-- decision-quality -->", "<!-- /decision-quality -->")
SHARES = (UNCHANGED, 0.03, 0.05, 0.10, 0.20)
STRICT = Limits.parse({"step_time": "1%", "block_time": "1%"})
USUAL = (UNCHANGED, 0.05)
"""Slowdowns whose seconds to a verdict are shown."""

DECIDERS: Mapping[str, Decide] = {
    "**pytest-perfdl, `--perf`**": our_gate,
    "**pytest-perfdl, `--perf-against`**": our_against(BUILT_IN),
    "**pytest-perfdl, `--perf-against`, limit 1 %**": our_against(STRICT),
    "**pytest-perfdl, `--perf`, unpaired**": our_unpaired,
    **{rule.name: other(rule) for rule in RULES},
}

Tallies = Mapping[str, Mapping[float, Tally]]


def decide_all(pools: Sequence[Pool], decisions: int, seed: int) -> dict[str, dict[float, Tally]]:
    """Every rule on every slowdown.

    Raises
    ------
    NotRecorded
    """
    found: dict[str, dict[float, Tally]] = {}
    for number, (name, decide) in enumerate(DECIDERS.items()):
        print(f"[{number + 1}/{len(DECIDERS)}] {name}", file=sys.stderr, flush=True)
        found[name] = {share: tally(decide, pools, share, decisions, (seed, number)) for share in SHARES}
    return found


def table(tallies: Tallies, *, intervals: bool) -> Iterator[str]:
    """Lines of the Markdown table."""
    heads = ("rule", "false alarms", *(f"+{share:.0%} found" for share in SHARES[1:]), "seconds to a verdict")
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (len(heads) - 1)}"
    for name, found in tallies.items():
        cells = (cell(found[share], intervals=intervals) for share in SHARES)
        yield f"| {' | '.join((name, *cells, seconds([found[share].seconds for share in USUAL])))} |"


def cell(found: Tally, *, intervals: bool) -> str:
    """A share, such as "31 %" or "31 % (28-34)"; what is not zero is not shown as zero."""
    text = percent(found.share) + " %"
    low, high = found.interval()
    return f"{text} ({percent(low)}-{percent(high)})" if intervals else text


def percent(share: float) -> str:
    """In whole percent, below one and above 99 with one decimal, where it is not exact."""
    hundredths = 100 * share
    return f"{hundredths:.1f}" if 0 < hundredths < 1 or 99 < hundredths < 100 else f"{hundredths:.0f}"


def seconds(usual: Sequence[float]) -> str:
    """On unchanged code and on slowed code, once where they are alike."""
    texts = list(dict.fromkeys(f"{each:.0f}" if each >= 10 else f"{each:.1f}" for each in usual))
    near = max(usual) < 1.25 * min(usual)
    return texts[0] if near else " to ".join(texts)


def caption(machine: Mapping[str, Any], runs: Sequence[Run], tallies: Tallies) -> str:
    """What the table rests on."""
    processes = sum(isinstance(run, Process) for run in runs)
    rounds = sum(isinstance(run, Round) for run in runs)
    every = [found for each in tallies.values() for found in each.values()]
    widest = max(max(found.share - found.interval()[0], found.interval()[1] - found.share) for found in every)
    none = Tally(0, every[0].decisions, 0.0).interval()[1]
    return (
        f"Recorded: {processes} processes, and {rounds} rounds of two processes that take turns, of two workloads (a "
        f"training step of a small transformer, inference of a small convolutional network){place(machine)}. What is "
        "slower busy-waits for that share after each step. Each share is of "
        f"{every[0].decisions} decisions drawn from these runs (seeded), its 95 % interval (Wilson) "
        f"±{100 * widest:.0f} points at the widest and up to {100 * none:.1f} % for none found; what another day or "
        "machine would give is not in it. Our limit is 3 % unless said otherwise, so +3 % is not past it. Every rule "
        "gets warmed-up steps of processes in our pinned environment. Seconds are those of fresh processes, as "
        "measured: starting, warming up and as many steps as the tool takes; two numbers are for unchanged code and "
        "for +5 %. Ours leave out the profiled steps, about a second for each test."
    )


def place(machine: Mapping[str, Any]) -> str:
    """Where and when; nothing for runs that are not packed yet."""
    if not machine:
        return ""
    return f", on {machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}, one thread, {machine['date']}"


def into_readme(path: Path, text: str) -> None:
    """Replace what stands between the markers.

    Raises
    ------
    ValueError
        When the file does not hold each marker once, in order.
    """
    old = path.read_text()
    start, end = MARKERS
    if old.count(start) != 1 or old.count(end) != 1 or old.index(start) > old.index(end):
        raise ValueError(f"{path}: expected one {start} and after it one {end}")
    head, _, rest = old.partition(start)
    path.write_text(f"{head}{start}\n{text}\n{end}{rest.partition(end)[2]}")


def report(machine: Mapping[str, Any], runs: Sequence[Run], tallies: Tallies, *, intervals: bool) -> str:
    """Table and caption."""
    return "\n".join((*table(tallies, intervals=intervals), "", caption(machine, runs, tallies)))


def main() -> int:
    """Print the table, or put it into README."""
    options = arguments()
    if not options.recorded.exists():
        print(f"{options.recorded} is not there: record.py makes it", file=sys.stderr)
        return 1
    machine, runs = unpack(options.recorded)
    workloads = sorted({run.workload for run in runs})
    groups: Iterable[Sequence[str]] = [[name] for name in workloads] if options.per_workload else [workloads]
    for names in groups:
        pools = [Pool(runs, name) for name in names]
        try:
            tallies = decide_all(pools, options.decisions, options.seed)
        except NotRecorded as error:
            print(f"{options.recorded}: {error}: record more", file=sys.stderr)
            return 1
        mine = [run for run in runs if run.workload in names]
        text = report(machine, mine, tallies, intervals=options.intervals)
        if options.readme:
            into_readme(ROOT / "README.md", text)
        print(*([f"## {names[0]}\n"] if options.per_workload else []), text, sep="\n")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=500, metavar="N", help="of a rule a workload (500)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recorded", type=Path, default=PACKED, metavar="FILE", help="packed, or .jsonl lines")
    parser.add_argument("--intervals", action="store_true", help="show every interval")
    parser.add_argument("--per-workload", action="store_true", help="one table for each workload")
    parser.add_argument("--readme", action="store_true", help="also replace the table in README.md")
    options = parser.parse_args()
    if options.readme and options.per_workload:
        parser.error("--readme takes the one table of all workloads")
    return options


if __name__ == "__main__":
    sys.exit(main())
