"""Replays recorded rounds of a table of 500 cases: how often unchanged tables alarm, and how much of a change is found.

    python benchmarks/tables/run.py --replays 1000 --docs   # writes docs/explanation/benchmarks.md

`record.py` made the recording: whole rounds of unchanged code, every case in each of them. A replayed table is either
these rounds in an order drawn at random, each once, with the sides that they had ("real labels"), or rounds drawn with
replacement, with both sides of all cases swapped by a coin a round, as the order of the sides is drawn live. A slowdown
multiplies the times of the head.

Nothing is left out of rounds here and nothing ends them, so that every hypothesis gets all the evidence that there
is: more chances of false alarms than live. A case or group counts as named in the first round after which
`judge/families.py` names it. Nothing is measured alone, which live can only take names away.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent)]

from common.tables import table, write_between

from pytest_perfdl.judge.families import Family, Limits, Node, Ratios, Tree, name_groups, typical
from pytest_perfdl.judge.stopping_rule import OVER
from pytest_perfdl.model.units import format_percent
from pytest_perfdl.stats.evidence import CAPS, Coin, Estimate, _log_densities

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PACKED = HERE / "data" / "recorded.json.gz"
PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
LIMITS = Limits(math.log1p(0.05), math.log1p(0.01))
GROUP = ("dtype", "float64")
"""Axis and value of the cases that get slower together."""
PROCESSES = 5
"""Of each side, for t-tests."""
MOST_ROUNDS = 40
"""Of a table whose rounds are drawn with replacement."""
_EVERY = 4
"""Rounds from one question to the rule about groups to the next."""


@dataclass(frozen=True)
class Recorded:
    """Whole rounds of a table."""

    tree: Tree
    head_second: tuple[bool, ...]
    base_ns: Floats
    """(rounds, cases), as `head_ns`."""
    head_ns: Floats
    date: str
    loads: tuple[float, ...]
    """Processes that ran or waited before each round, by the system's average of a minute."""

    @classmethod
    def read(cls, path: Path) -> Recorded:
        """Read what `record.py` wrote."""
        found = json.loads(gzip.decompress(path.read_bytes()))
        nodes = tuple(Node(each["where"], tuple(each["members"])) for each in found["nodes"])
        sides = np.array(found["base_ns"]), np.array(found["head_ns"])
        tree = Tree(tuple(found["cases"]), nodes)
        return cls(tree, tuple(found["head_second"]), *sides, found["date"], tuple(found["loads"]))

    @cached_property
    def values(self) -> Floats:
        """log(head / base), (rounds, cases)."""
        return np.asarray(np.log(self.head_ns / self.base_ns))

    @property
    def group(self) -> int:
        """Place of the node of `GROUP`."""
        return next(place for place, node in enumerate(self.tree.nodes) if dict(node.where) == dict([GROUP]))

    def rows(self, change: Change) -> Floats:
        """log(head / base) of every round with a change, and of every round with its sides swapped: (rows, cases)."""
        found = np.concatenate([self.values, -self.values])
        found[:, list(change.places)] += math.log1p(change.amount)
        return found

    @cached_property
    def unchanged(self) -> Bets:
        """The bets on all cases where nothing changed."""
        return Bets(self.rows(Change()), LIMITS.case)

    @cached_property
    def unchanged_nodes(self) -> Bets:
        """The bets on all nodes where nothing changed."""
        return Bets(self.medians(self.rows(Change()), range(len(self.tree.nodes))), LIMITS.node)

    def medians(self, rows: Floats, nodes: Sequence[int]) -> Floats:
        """The differences of nodes, by their places: (rows, nodes)."""
        return np.stack([typical(rows[:, list(self.tree.nodes[place].members)]) for place in nodes], axis=1)


@dataclass(frozen=True)
class Change:
    """What got slower in a table."""

    places: tuple[int, ...] = ()
    amount: float = 0.0


class Bets:
    """The bets of `stats.evidence.Coin` on series whose rows are drawn again and again: their densities stay.

    Parameters
    ----------
    rows
        log(head / base), (rows, series).
    limit
        What is bet on.
    """

    def __init__(self, rows: Floats, limit: float) -> None:
        coin = Coin(limit)
        self._there, self._mirrored = (
            np.stack([_singles(_log_densities(sign * row[:, None] - coin._deltas)) for row in rows]) for sign in (1, -1)
        )
        self._weights = _singles(np.tile(coin._log_weights, (rows.shape[1], 1, 1)))

    def evidence(self, drawn: Sequence[int]) -> Floats:
        """E of every series after each of the drawn rows: (rounds, series)."""
        weights, wealth = self._weights.copy(), np.zeros((len(CAPS), len(self._weights)))
        found = []
        for row in drawn:
            there = self._there[row]
            odds = np.log(_mass(weights, there)) - np.log(_mass(weights, self._mirrored[row]))
            wealth += [math.log(2) - np.log1p(np.exp(-np.clip(odds, -cap, cap))) for cap in CAPS]
            weights *= there
            weights /= weights.max(axis=(1, 2), keepdims=True)
            found.append(np.exp(wealth).mean(axis=0))
        return np.stack(found)


def _singles(logs: Floats) -> NDArray[np.float32]:
    """Of logarithms: four digits of evidence are enough, and take half of the time."""
    return np.exp(logs).astype(np.float32)


def _mass(weights: NDArray[np.float32], densities: NDArray[np.float32]) -> Floats:
    return np.asarray(np.einsum("sdk,sdk->s", weights, densities), np.float64)


@dataclass(frozen=True)
class Draw:
    """The rounds of a replayed table."""

    rows: tuple[int, ...]
    """Of `Recorded.rows`."""
    head_second: tuple[bool, ...]
    cases: Floats
    """Evidence of every case if nothing changed, (rounds, cases)."""
    nodes: Floats
    """The same of every node, (rounds, nodes)."""

    @classmethod
    def of(cls, recorded: Recorded, rng: np.random.Generator, *, swap: bool) -> Draw:
        """Every round once as it was; or `MOST_ROUNDS` with replacement, each with its sides swapped by a coin."""
        count = len(recorded.values)
        places = rng.integers(count, size=MOST_ROUNDS) if swap else rng.permutation(count)
        coins = rng.random(len(places)) < 0.5 if swap else np.zeros(count, bool)
        rows = tuple((places + count * coins).tolist())
        second = tuple(bool(recorded.head_second[place] ^ coin) for place, coin in zip(places, coins, strict=True))
        return cls(rows, second, recorded.unchanged.evidence(rows), recorded.unchanged_nodes.evidence(rows))


@dataclass(frozen=True)
class Replayed:
    """What the rule says of a table."""

    alarmed: bool
    right: int
    """The round after which what changed is named; 0 for never."""
    wrong: bool
    """Whether another case or a group is named."""


def replay(recorded: Recorded, draw: Draw, change: Change) -> Replayed:
    """One table."""
    tree, family = recorded.tree, Family(recorded.tree, LIMITS)
    rows, places = recorded.rows(change), list(change.places)
    cases, nodes = draw.cases.copy(), draw.nodes.copy()
    if places:
        cases[:, places] = Bets(rows[:, places], LIMITS.case).evidence(draw.rows)
        touched = [number for number, node in enumerate(tree.nodes) if not set(places).isdisjoint(node.members)]
        nodes[:, touched] = Bets(recorded.medians(rows, touched), LIMITS.node).evidence(draw.rows)
    mean = tree.case_weight * cases.sum(axis=1) + tree.node_weight * nodes.sum(axis=1)
    values = rows[list(draw.rows)]

    def named_from(place: int) -> int:
        """The round after which a case is named; 0 for never."""
        for number in np.flatnonzero(tree.case_weight * cases[:, place] >= family.needed).tolist():
            differences = tuple(values[: number + 1, place].tolist())
            if Estimate(differences, draw.head_second[: number + 1]).over(LIMITS.case) >= OVER:
                return int(number) + 1
        return 0

    right = named_from(places[0]) if len(places) == 1 else 0
    reached = np.flatnonzero((tree.case_weight * cases >= family.needed).any(axis=0)).tolist()
    wrong = any(named_from(place) for place in reached if place not in places)
    held = tree.node_weight * nodes >= family.needed
    # What a group's name also depends on is asked of the rule where groups reach their evidence, and some rounds later.
    for number in sorted(
        {*np.flatnonzero(held.any(axis=1))[::_EVERY].tolist(), *held.argmax(axis=0)[held.any(axis=0)]}
    ):
        outcome = family.look(Ratios(values[: number + 1], draw.head_second[: number + 1]))
        for node, _ in name_groups(tree, outcome):
            if len(places) > 1 and node is tree.nodes[recorded.group]:
                right = right or int(number) + 1
            wrong |= not set(node.members) <= set(places)
        if right and len(places) > 1:
            break
    return Replayed(bool((mean >= family.needed).any()), right, wrong)


# Other rules, on the same recording.


def over(share: float) -> Callable[[Floats, Floats], NDArray[np.bool_]]:
    """Cases whose time in one process is this much longer than in an earlier one."""
    return lambda base, head: head[0] / base[0] - 1 > share


def t_tests(base: Floats, head: Floats) -> NDArray[np.bool_]:
    """Cases that Welch's test of the processes' times calls slower, with Benjamini and Hochberg's procedure at 5 %."""
    from scipy.stats import false_discovery_control, ttest_ind

    p = ttest_ind(np.log(head), np.log(base), equal_var=False, alternative="greater").pvalue
    return np.asarray(false_discovery_control(p) < 0.05)


OTHERS = {
    "20 % of each case": (1, over(0.2)),
    "pytest-benchmark, `median:5%` of each case": (1, over(0.05)),
    f"t-tests of {PROCESSES} processes, Benjamini-Hochberg at 5 %": (PROCESSES, t_tests),
}
"""Processes of each side, and which cases a rule calls slower by their times (processes, cases)."""


def flagged(recorded: Recorded, rule: str, change: Change, rng: np.random.Generator) -> NDArray[np.bool_]:
    """The cases that a rule calls slower; the stored processes are of other rounds than the fresh ones."""
    count, calls = OTHERS[rule]
    drawn = rng.permutation(len(recorded.values))
    base, head = recorded.base_ns[drawn[:count]], recorded.head_ns[drawn[count : 2 * count]].copy()
    head[:, list(change.places)] *= 1 + change.amount
    return calls(base, head)


# The table.


@dataclass(frozen=True)
class Row:
    """A rule on many tables of one kind."""

    name: str
    replays: int
    alarmed: int
    found: float
    wrong: int
    rounds: float = math.nan


SINGLE, GROUPS = (3.0, 0.2, 0.1), (0.05, 0.02)
"""Slowdowns of one case, and of all of `GROUP`."""


def decide(recorded: Recorded, replays: int, seed: int) -> Iterator[tuple[str, Row]]:
    """Every kind of table by every rule, ours first; tables with a slower group take longest and are fewer."""
    cases, members = len(recorded.tree.cases), recorded.tree.nodes[recorded.group].members
    rng = np.random.default_rng(seed)
    as_recorded = [replay(recorded, Draw.of(recorded, rng, swap=False), Change()) for _ in range(replays)]
    yield "unchanged", ours(", real labels", as_recorded)
    single: dict[float, list[Replayed]] = {amount: [] for amount in (0.0, *SINGLE)}
    for _ in range(replays):
        draw, place = Draw.of(recorded, rng, swap=True), int(rng.integers(cases))
        for amount, found in single.items():
            found.append(replay(recorded, draw, Change((place,), amount) if amount else Change()))
    for amount, found in single.items():
        kind = f"one case {format_percent(amount)}" if amount else "unchanged"
        yield kind, ours("", found)
        for rule in OTHERS:
            made = [Change((int(rng.integers(cases)),), amount) if amount else Change() for _ in range(replays)]
            yield kind, others(recorded, rule, made, rng)
    for amount in GROUPS:
        kind, count = f"{'='.join(GROUP)} {format_percent(amount)}", max(1, replays // 30)
        change = Change(members, amount)
        yield kind, ours("", [replay(recorded, Draw.of(recorded, rng, swap=True), change) for _ in range(count)])
        for rule in OTHERS:
            yield kind, others(recorded, rule, [change] * count, rng)


def ours(how: str, made: Sequence[Replayed]) -> Row:
    """The rule's row; `how` says how the tables were drawn."""
    right = [each.right for each in made if each.right]
    return Row(
        f"**pytest-perfdl**{how}",
        len(made),
        sum(each.alarmed for each in made),
        len(right) / len(made),
        sum(each.wrong for each in made),
        float(np.median(right)) if right else math.nan,
    )


def others(recorded: Recorded, rule: str, changes: Sequence[Change], rng: np.random.Generator) -> Row:
    """The row of another rule, with a table for each of these changes."""
    alarmed, found, wrong = 0, 0.0, 0
    for change in changes:
        slower = flagged(recorded, rule, change, rng)
        alarmed += bool(slower.any())
        found += float(slower[list(change.places)].mean()) if change.places else 0.0
        wrong += bool(np.delete(slower, change.places).any())
    return Row(rule, len(changes), alarmed, found / len(changes), wrong, OTHERS[rule][0])


def cells(kind: str, row: Row) -> tuple[str, ...]:
    """A row of the table."""
    found = "" if kind == "unchanged" else f"{100 * row.found:.1f} %"
    rounds = "" if math.isnan(row.rounds) else f"{row.rounds:g}"
    return kind, row.name, f"{row.replays}", f"{row.alarmed}", found, f"{row.wrong}", rounds


HEADS = ("table", "rule", "replays", "alarmed", "found", "another named", "rounds")


def caption(recorded: Recorded) -> str:
    """What the table rests on."""
    tree, values = recorded.tree, recorded.values
    correlations = np.corrcoef(_ranks(values).T)
    between = correlations[np.triu_indices(len(correlations), 1)]
    noise = 1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    of_nodes = [_deviation(typical(values[:, list(node.members)])) for node in tree.nodes]
    loads = recorded.loads
    lightest, usual, most = min(loads), np.median(loads), max(loads)
    notes: list[str] = []
    notes.append(
        f"Recorded: {len(values)} rounds of {len(tree.cases)} unchanged cases (`examples/test_operators.py`), every "
        f"case in every round, on 2 cores, {recorded.date}. The load was {lightest:.1f} to "
        f"{most:.1f}, median {usual:.1f}, of which this work itself is 1."
    )
    notes.append(
        f"Noise of a case in a round: median {100 * np.median(noise):.2f} %, a tenth of the cases over "
        f"{100 * np.quantile(noise, 0.9):.2f} %. Of a group's median: {100 * np.median(of_nodes):.2f} % (median of "
        f"{len(tree.nodes)} groups), of `{'='.join(GROUP)}` {100 * of_nodes[recorded.group]:.2f} %."
    )
    notes.append(
        f"Rank correlation of two cases' ratios over the rounds: mean {np.mean(between):.2f}, a tenth of the pairs "
        f"over {np.quantile(between, 0.9):.2f}."
    )
    notes.append(
        "*Found* is the share of tables in which what changed is named: by pytest-perfdl the case, or the group as a "
        "group; by the other rules the share of the changed cases. *Another named* counts tables in which an "
        "unchanged case, or a group with unchanged cases, is named; the rounds of a group end when it is found. "
        "*Rounds* is the median after which it is found; of other rules, their processes of each side."
    )
    notes.append(
        "*Real labels*: every recorded round once, with the sides that it had, in an order drawn at random. All "
        f"others: {MOST_ROUNDS} rounds drawn with replacement, in each of which a coin swaps the sides of all cases."
    )
    return "\n".join(f"- {note}" for note in notes)


def _ranks(values: Floats) -> Floats:
    return np.asarray(values.argsort(axis=0).argsort(axis=0), float)


def _deviation(values: Floats) -> float:
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replays", type=int, default=1000, help="of unchanged tables (default: 1000)")
    parser.add_argument("--recording", type=Path, default=PACKED)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docs", action="store_true", help="write the documentation, instead of to stdout")
    arguments = parser.parse_args()
    recorded = Recorded.read(arguments.recording)
    rows = []
    for kind, row in decide(recorded, arguments.replays, arguments.seed):
        rows.append(cells(kind, row))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    text = "\n".join((*table(HEADS, rows, numbers=True), "", caption(recorded)))
    if arguments.docs:
        write_between(PAGE, "<!-- tables -->", "<!-- /tables -->", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
