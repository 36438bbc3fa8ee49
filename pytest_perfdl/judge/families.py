"""The rule for a family of cases that the two processes of a round measure together: one test, one error rate.

Every *hypothesis* of the family ("this got slower") has evidence of its own (`stats.evidence`): each single case, and
each *node*, a set of cases that is fixed before any round (`grow_tree`). All of them share the coin of a round, which
decides which side goes first in all cases, so their evidence is not independent; the rule does not need it to be:

- Half of the weight is that of the cases, half that of the nodes. The weighted mean of the evidence is itself the
  wealth of a bet, so that for unchanged code it ever reaches `tests / ALPHA` in at most `ALPHA / tests` of all runs
  (Vovk and Wang, Annals of Statistics 49 (2021), "E-values: calibration, combination and applications", prop. 3.1:
  means of e-values are the admissible way to merge them under any dependence). Then the family *alarms*.
- A hypothesis is *named* where its weight times its own evidence reaches the same: a mean over all that are true never
  exceeds the family's, so that an unchanged case is named in at most `ALPHA / tests` of all runs, whatever happened to
  the others (the weighted Bonferroni rule for e-values). A product of the evidence of a node's members would not be
  valid: their signs are one toss.
- The difference of a node is the median of its members' in a round that measured all of them (`typical`). One changed
  member moves a median a little, and always the same way, so a node is named only if it would be named without any one
  of its members (a partial conjunction: Benjamini and Heller, Biometrics 64 (2008); the least of the evidence of all
  sets with one member less is valid if at most one member changed), and without all that is already named.

What is decided is not measured again, except where a node that leans towards being slower needs all its members.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from pytest_perfdl.judge.stopping_rule import ALPHA, EXCLUDED, LEAST_ROUNDS, OVER, OWN_EVIDENCE
from pytest_perfdl.stats.evidence import Estimate, evidence, evidence_of_each, rarely_so_few

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_perfdl.judge.stopping_rule import Spent

    Floats = NDArray[np.float64]

MOST_NODES = 40
"""Nodes of a tree: each more would take weight, which is rounds, from the others."""
LEAST_MEMBERS = 5
"""Members of a node: a median of fewer hardly says what is typical."""
NODE_SHARE = 0.5
"""Weight of all nodes together."""

Standing = Literal["regressed", "improved", "unchanged", "explained", "open"]
"""What is known of a hypothesis; a node is `explained` where what else is named accounts for its evidence."""


@dataclass(frozen=True, slots=True)
class Node:
    """A set of cases that is judged as one: all, those with a value of an axis, or those that run an operator."""

    where: Mapping[str, str]
    """What its members have in common: an axis and its value, or `operator` and its name; empty for all cases."""
    members: tuple[int, ...]
    """Places of its cases in those of the tree."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The hypotheses of a family, and their weights, which add up to 1."""

    cases: tuple[str, ...]
    nodes: tuple[Node, ...]

    @property
    def case_weight(self) -> float:
        """Of each case."""
        return (1 - NODE_SHARE if self.nodes else 1.0) / len(self.cases)

    @property
    def node_weight(self) -> float:
        """Of each node."""
        return NODE_SHARE / len(self.nodes) if self.nodes else 0.0


def grow_tree(cases: Sequence[str], axes: Mapping[str, Mapping[str, str]], operators: Mapping[str, Set[str]]) -> Tree:
    """The tree of a family; it must be made before any round, of what does not depend on the two sides' times.

    The nodes are all cases, each value of each axis, and each set of cases that share an operator; without those of
    fewer than `LEAST_MEMBERS`, without a set that was there before, and at most `MOST_NODES`, the largest first.

    Parameters
    ----------
    cases
        Ids, at least one, each once.
    axes
        Values of each case, by axis; cases may lack axes.
    operators
        What each case runs in the *baseline*: those of the head would make members of what changed.
    """
    places = {case: place for place, case in enumerate(cases)}
    if not places or len(places) < len(cases):
        raise ValueError(f"a family needs cases, each of them once, got {len(cases)}")
    sets: dict[tuple[str, str], list[int]] = {}
    for case, place in places.items():
        for axis, value in axes.get(case, {}).items():
            sets.setdefault((axis, value), []).append(place)
    by_operator: dict[tuple[str, str], list[int]] = {}
    for case, place in places.items():
        for name in operators.get(case, ()):
            by_operator.setdefault(("operator", name), []).append(place)
    found: dict[tuple[int, ...], Node] = {}
    every = tuple(range(len(places)))
    candidates = [Node({}, every)]
    for part in (sets, by_operator):
        candidates += [Node(dict([where]), tuple(members)) for where, members in sorted(part.items())]
    for node in candidates:
        if len(node.members) >= LEAST_MEMBERS:
            found.setdefault(node.members, node)
    largest = sorted(found.values(), key=lambda node: -len(node.members))[:MOST_NODES]
    return Tree(tuple(cases), tuple(largest))


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """What the rounds of a family measured."""

    values: Floats
    """log(head / base), (rounds, cases); NaN where a round did not measure a case."""
    head_second: tuple[bool, ...]
    """Whether the head's process came second, one a round: the only coin, which all cases share."""

    def of_node(self, members: Sequence[int]) -> tuple[Floats, tuple[bool, ...]]:
        """The members' log ratios in the rounds with all of them (rounds, members), and the orders of these rounds."""
        own = self.values[:, list(members)]
        whole = np.asarray(np.isfinite(own).all(axis=1))
        return own[whole], tuple(itertools.compress(self.head_second, whole.tolist()))


@dataclass(frozen=True, slots=True)
class Limits:
    """Slowdowns that a family is held to, on the log scale."""

    case: float
    node: float


@dataclass(frozen=True, slots=True)
class Judged:
    """What the rounds say of a case or node; figures are on the log scale, above zero for slower."""

    standing: Standing
    evidence: float = 1.0
    effect: float | None = None
    """Median of the posterior; `None` without rounds."""
    interval: tuple[float, float] | None = None
    over: float = 0.0
    """Probability of being slower by more than the limit."""
    excluded: bool = False
    """Whether a slowdown above the limit is excluded."""
    rounds: int = 0
    noise: float | None = None
    """Standard deviation of the rounds, from their median deviation; `None` for fewer than three."""
    agreeing: int = 0
    """Of a node: members whose own interval lies on the same side of zero."""


@dataclass(frozen=True, slots=True)
class FamilyOutcome:
    """What the rounds so far say of a family."""

    cases: tuple[Judged, ...]
    """In the order of the tree."""
    nodes: tuple[Judged, ...]
    evidence: float
    """Weighted mean of the evidence of all hypotheses."""
    alarmed: bool
    """Whether unchanged code would hardly ever come to this: the test fails."""
    next: frozenset[int] = frozenset()
    """Places of the cases that the next round measures; empty when measuring is over."""
    promising: tuple[int, ...] = ()
    """Places of the nodes whose members stay in the next round."""

    @property
    def open(self) -> bool:
        """Whether to measure another round."""
        return bool(self.next)


@dataclass(frozen=True, slots=True)
class Family:
    """The rule for one table; a pure function of its rounds, so that recorded ones can be replayed."""

    tree: Tree
    limits: Limits
    tests: int = 1
    """Tests, and comparisons in them, that share `ALPHA`; the table is one."""

    @property
    def needed(self) -> float:
        """The evidence at which the family alarms: T of Ville's inequality."""
        return self.tests / ALPHA

    def look(self, ratios: Ratios, spent: Spent | None = None, *, final: bool = False) -> FamilyOutcome:
        """Decide from the rounds so far, and which cases the next round measures.

        A case that was cleared by its earlier rounds stays so, and its figures are computed again only where it is
        named, or where this look is the `final` one: a round that measures hundreds of cases for a node would otherwise
        take longer to judge than to measure.
        """
        tree, values = self.tree, ratios.values
        own = evidence_of_each(values, self.limits.case)
        node_rounds = [ratios.of_node(node.members) for node in tree.nodes]
        medians = [typical(own_values) for own_values, _ in node_rounds]
        shared = np.array([evidence(each.tolist(), self.limits.node) for each in medians])
        mean = float(tree.case_weight * own.sum() + tree.node_weight * shared.sum())

        cases = []
        for place in range(len(tree.cases)):
            known = np.isfinite(values[:, place])
            differences = tuple(values[known, place].tolist())
            seconds = tuple(itertools.compress(ratios.head_second, known.tolist()))
            named = tree.case_weight * own[place] >= self.needed
            if not (final or named) and _was_cleared(differences, seconds, self.limits.case):
                center = float(np.median(differences))
                rounds = len(differences)
                cases.append(Judged("unchanged", float(own[place]), center, excluded=True, rounds=rounds))
                continue
            cases.append(_judged(differences, seconds, self.limits.case, float(own[place]), named=bool(named)))
        nodes = []
        for place in range(len(tree.nodes)):
            differences, seconds = tuple(medians[place].tolist()), node_rounds[place][1]
            named = tree.node_weight * shared[place] >= self.needed
            nodes.append(_judged(differences, seconds, self.limits.node, float(shared[place]), named=bool(named)))
        nodes = self._named(ratios, cases, nodes)
        nodes = [_with_agreement(each, node, cases) for each, node in zip(nodes, tree.nodes, strict=True)]
        worse = [each for each in (*cases, *nodes) if each.evidence >= OWN_EVIDENCE and each.over >= OVER]
        outcome = FamilyOutcome(tuple(cases), tuple(nodes), mean, alarmed=mean >= self.needed and bool(worse))
        return self._with_next(outcome, spent)

    def _named(self, ratios: Ratios, cases: Sequence[Judged], nodes: Sequence[Judged]) -> list[Judged]:
        """The nodes; those that reach the evidence stay regressed only if others do not explain it.

        The one that describes best which cases look slower comes first, and its members no longer count for the nodes
        after it. Nor do cases that are named, unless they are half of a node or more: then its members are typically
        slower.
        """
        slower = {place for place, each in enumerate(cases) if (each.effect or 0.0) > self.limits.node}
        alone = {place for place, each in enumerate(cases) if each.standing == "regressed"}
        explained: set[int] = set()
        found = list(nodes)

        def describes(place: int) -> float:
            """How well a node's members are those that look slower: the F measure, precision counting double."""
            members = self.tree.nodes[place].members
            both = len(slower.intersection(members))
            return 1.25 * both / (0.25 * len(slower) + len(members))

        reached = [place for place, each in enumerate(nodes) if each.standing == "regressed"]
        for place in sorted(reached, key=lambda each: (-describes(each), each)):
            members = self.tree.nodes[place].members
            few = alone if 2 * len(alone.intersection(members)) < len(members) else set()
            left = [member for member in members if member not in explained | few]
            sets = [members] if left == list(members) else [members, left]
            if all(self._reaches_without_one(ratios, each) for each in sets):
                explained |= set(members)
            else:
                found[place] = replace(nodes[place], standing="explained")
        return found

    def _reaches_without_one(self, ratios: Ratios, members: Sequence[int]) -> bool:
        """Whether a node of these members would be named without any one of them."""
        if len(members) < LEAST_MEMBERS:
            return False
        own, _ = ratios.of_node(members)
        without = np.stack([typical(np.delete(own, place, axis=1)) for place in range(len(members))], axis=1)
        least = float(evidence_of_each(without, self.limits.node).min())
        return self.tree.node_weight * least >= self.needed

    def _with_next(self, outcome: FamilyOutcome, spent: Spent | None) -> FamilyOutcome:
        """The outcome with what the next round measures, which must not depend on anything but earlier rounds."""
        tree = self.tree
        if spent is not None and spent.extension_ended:
            return outcome
        late = spent is not None and spent.ended
        chosen: set[int] = set()
        for place, each in enumerate(outcome.cases):
            # After the budget, only what looks slower than hundreds of others do by chance.
            if each.standing == "open" and (not late or each.over >= 1 - (1 - OVER) * tree.case_weight):
                chosen.add(place)
        promising = []
        for place, each in enumerate(outcome.nodes):
            leans = each.standing == "open" and each.rounds >= LEAST_ROUNDS
            if leans and each.over >= (1 - (1 - OVER) * tree.node_weight if late else 0.5):
                promising.append(place)
                chosen |= set(tree.nodes[place].members)
        return replace(outcome, next=frozenset(chosen), promising=tuple(promising))


def typical(values: Floats) -> Floats:
    """The median of the members' log ratios in every round (rounds, members): (rounds,).

    Of an even number, the one of both middle values that is nearer to zero, and zero where these have opposite signs:
    more than half of the members changed by this at least. Swapping the sides of a round changes the sign only.
    """
    ordered, members = np.sort(values, axis=1), values.shape[1]
    low, high = ordered[:, (members - 1) // 2], ordered[:, members // 2]
    return np.asarray(np.where(low > 0, low, np.where(high < 0, high, 0.0)))


def name_groups(tree: Tree, outcome: FamilyOutcome) -> list[tuple[Node, Judged]]:
    """The named nodes, the largest effect first."""
    named = [pair for pair in zip(tree.nodes, outcome.nodes, strict=True) if pair[1].standing == "regressed"]
    return sorted(named, key=lambda pair: -(pair[1].effect or 0.0))


def _judged(
    differences: tuple[float, ...], head_second: tuple[bool, ...], limit: float, own: float, *, named: bool
) -> Judged:
    """One hypothesis after its rounds; `named` says whether its evidence is enough."""
    if not differences:
        return Judged("open")
    center, interval, over, under = _figures(differences, head_second, limit)
    mixed = len(differences) >= LEAST_ROUNDS and len(set(head_second)) > 1
    excluded = over <= 1 - EXCLUDED and mixed and rarely_so_few(differences, limit)
    standing: Standing = "open"
    if named and over >= OVER:
        standing = "regressed"
    elif under >= OVER:
        # As a single test's speed-up: it fails nothing, so that it needs the evidence of one.
        if evidence((-each for each in differences), limit) >= OWN_EVIDENCE:
            standing = "improved"
    elif excluded:
        standing = "unchanged"
    return Judged(standing, own, center, interval, over, excluded, len(differences), _noise(differences))


def _was_cleared(differences: tuple[float, ...], head_second: tuple[bool, ...], limit: float) -> bool:
    """Whether a look at fewer of these rounds excluded a slowdown above the limit."""
    return any(
        _is_cleared(differences[:count], head_second[:count], limit) for count in range(LEAST_ROUNDS, len(differences))
    )


@functools.lru_cache(maxsize=2**16)
def _is_cleared(differences: tuple[float, ...], head_second: tuple[bool, ...], limit: float) -> bool:
    return _judged(differences, head_second, limit, 1.0, named=False).standing == "unchanged"


@functools.lru_cache(maxsize=8192)
def _figures(
    differences: tuple[float, ...], head_second: tuple[bool, ...], limit: float
) -> tuple[float, tuple[float, float], float, float]:
    """Center, interval, and probabilities to be over the limit and under its negative; kept for later looks."""
    estimate = Estimate(differences, head_second)
    return estimate.center, estimate.interval, estimate.over(limit), 1 - estimate.over(-limit)


def _noise(differences: Iterable[float]) -> float | None:
    seen = np.array(list(differences))
    if len(seen) < LEAST_ROUNDS:
        return None
    return float(1.4826 * np.median(np.abs(seen - np.median(seen))))


def _with_agreement(judged: Judged, node: Node, cases: Sequence[Judged]) -> Judged:
    """A node with how many of its members' own intervals lie on its side of zero."""
    if judged.effect is None:
        return judged
    sign = 1 if judged.effect > 0 else -1
    own = [cases[member].interval for member in node.members]
    agreeing = sum(each is not None and min(sign * end for end in each) > 0 for each in own)
    return replace(judged, agreeing=agreeing)
