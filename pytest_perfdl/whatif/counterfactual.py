"""Had this not changed, what would the step take? Blame where work overlaps, by simulation of a trace's task graph.

The account gives a moment to what alone ran then. Where several run at once that is not what each costs: a slower
kernel may hide behind another, a faster one uncover the host. So the tasks of the new side's trace are simulated with
the durations that they had on the base's, cause by cause: the step without one of them is what it would take, the
shares of the change are Shapley's over all of them, and what grew without the step is *latent*. What is gone from
the new side is taken out of the base's trace instead.

Work is matched as parts are, all of it, host and device, hidden or not: a side's tasks are its parts, each step a
column, so that what changed for certain is told from noise in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pytest_perfdl.analysis.account.parts import TimeEntries, labels
from pytest_perfdl.analysis.events.launches import call_tree
from pytest_perfdl.analysis.events.nesting import Mask
from pytest_perfdl.analysis.events.threads import input_rows
from pytest_perfdl.diff import Diff, DiffCause, Side, causes, diff, side_of_traces
from pytest_perfdl.diff.account import PYTHON, rounded
from pytest_perfdl.diff.causes import LEAST_SHARE, LEAST_SHARE_UNREPEATED
from pytest_perfdl.diff.matching.names import NO_RULES, Rules
from pytest_perfdl.diff.shapley import shapley
from pytest_perfdl.diff.side import Counterfactual, Share
from pytest_perfdl.model.step_part import PartKind
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.trace import Trace
from pytest_perfdl.trace.model import I64, Category, Rows
from pytest_perfdl.whatif import simulate, task_graph
from pytest_perfdl.whatif.model import TaskGraph, TaskKind, mask_of
from pytest_perfdl.whatif.simulation.quality import quality

MOST = 8
"""Causes that are simulated one by one, those whose work changed most; the others together."""
MOST_SIMULATIONS, FEWEST_SIMULATIONS, TASKS = 512, 64, 12_000_000
"""As many simulations as make up so many tasks, within bounds: about a second."""
LATENT = 0.1
"""Share of its own growth that the step may pay for what is called latent."""
MISSED, MISSED_OF_STEP = 0.5, 0.01
"""Shares of the change and of the step that may be left without an explanation; what leaves more than both says
nothing."""
_HALVINGS = 12

_DEVICE, _HOST, _INPUT, _GAP = "device", "host", "input", PYTHON


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """The tasks of a trace as parts."""

    graph: TaskGraph
    side: Side
    place: Rows
    """The part that each task is of, -1 for none: waiting, other threads' gaps, and what no step has."""


def counterfactual(found: Diff, base: Trace, new: Trace, rules: Rules = NO_RULES) -> Counterfactual | None:
    """What each cause of a change costs the step, from one trace on each side.

    `None` where the account says it all: nothing overlaps, or no work changed. `rules` are a project's own, for the
    names by which work is matched.
    """
    graphs = task_graph(base), task_graph(new)
    if not all(map(_overlaps, graphs)):
        return None
    works = [_work(label, graph) for label, graph in zip(("base", "new"), graphs, strict=True)]
    changed = diff(*(work.side for work in works), rules=rules)
    named = _largest_causes(changed, found.base_ns)
    if not named:
        return None
    games = [_Game(work, changed, named, number) for number, work in enumerate(works)]
    played = [game for game in games if game.players]
    for known in (quality(game.graph) for game in played):
        if known.trust != "ok":
            return Counterfactual(refused=known.reason)
    return _share_out(found, named, games, played)


def _overlaps(graph: TaskGraph) -> bool:
    """Whether more than one thread or stream works in the steps."""
    own = (graph.tasks.step >= 0) & (graph.tasks.duration > 0) & (graph.tasks.kind != TaskKind.GAP)
    return len(np.unique(graph.tasks.track[own])) > 1


def _largest_causes(changed: Diff, step_ns: int) -> list[DiffCause]:
    """Causes that are large enough; where a side has one step only, what is larger than that is taken for certain."""
    untested = changed.detectable_ns is None
    least = (LEAST_SHARE_UNREPEATED if untested else LEAST_SHARE) * step_ns
    large = [
        replace(cause, certain=cause.certain or untested) for cause in causes(changed) if abs(cause.delta_ns) >= least
    ]
    return sorted(large, key=lambda cause: -abs(cause.own_ns))[:MOST]


def _work(label: str, graph: TaskGraph) -> _Work:
    trace, tasks = graph.trace, graph.tasks
    if trace is None:
        raise ValueError("the simulation needs a task graph that was made from a trace")
    ledger = TimeEntries(trace, labels(trace), (_DEVICE, _HOST, _INPUT, _GAP))
    inside = (tasks.step >= 0) & ~tasks.setup
    tree = call_tree(trace)
    # A call is part of the operator that makes it; device events know theirs.
    host = _values_of_rows(tree.nearest(trace.category == Category.CPU_OP), tasks.row)
    host = np.where(host >= 0, host, tasks.row)
    fetches = tree.nearest(mask_of(len(trace), input_rows(trace)))
    loading = (_values_of_rows(fetches, tasks.row) >= 0) | (tasks.kind == TaskKind.INPUT)
    device = graph.is_device & (graph.on_device | (tasks.kind != TaskKind.COMMUNICATION))
    on_host = np.isin(tasks.kind, (TaskKind.OPERATOR, TaskKind.CALL, TaskKind.COMMUNICATION)) & ~device
    nowhere = np.full(len(tasks), -1, dtype=np.intp)
    sorts: tuple[tuple[PartKind, str, Mask, Rows], ...] = (
        ("kernel", _DEVICE, device, tasks.row),
        ("operator", _HOST, on_host & ~loading, host),
        ("idle", _INPUT, loading & ~device & (tasks.kind != TaskKind.GAP), nowhere),
        # Of other threads a gap is waiting for something to do.
        ("idle", _GAP, (tasks.kind == TaskKind.GAP) & (tasks.track == graph.owner), nowhere),
    )
    entered = []
    for kind, name, mine, row in sorts:
        own = np.flatnonzero(inside & mine)
        own = own[tasks.duration[own] > 0]
        ns = tasks.duration[own]
        ledger.add(kind, name, row[own], tasks.step[own].astype(np.intp), ns=ns, busy=ns, count=int(kind != "idle"))
        entered.append(own)
    every = np.concatenate(entered)
    step_ns = np.zeros(len(graph.steps), dtype=np.int64)
    np.add.at(step_ns, tasks.step[every], tasks.duration[every])
    found, places = ledger.close_with_places(True, step_ns)
    side = side_of_traces(label, [found])
    # A side has parts that read alike once.
    known = {part: number for number, part in enumerate(zip(side.parts, side.classes, strict=True))}
    numbers = np.array([known[part] for part in zip(found.parts, found.classes, strict=True)], dtype=np.intp)
    place = np.full(len(tasks), -1, dtype=np.intp)
    place[every] = numbers[places]
    return _Work(graph, side, place)


def _values_of_rows(values: Rows, row: Rows) -> Rows:
    """The value of each task's row, -1 for tasks without one."""
    return np.where(row >= 0, values[row], -1)


class _Game:
    """One side's tasks, some of which take as long as on the other side: a coalition of causes is in effect or not.

    On the new side these are all causes with work there; on the base's those with work that is gone. The last player
    is what is not named.
    """

    def __init__(self, work: _Work, changed: Diff, named: Sequence[DiffCause], number: int) -> None:
        self.graph = work.graph
        self._gone = number == 0
        of_change = {id(change): player for player, cause in enumerate(named) for change in cause.changes}
        player, factor = np.full(len(work.side.parts) + 1, -1), np.ones(len(work.side.parts) + 1)
        for change in changed.changes:
            own = list(change.group.base if self._gone else change.group.new)
            if own and not (self._gone and change.new_parts):
                player[own] = of_change.get(id(change), len(named))
                factor[own] = 0.0 if self._gone else change.base.ns / change.new.ns
        # Tasks of no part have place -1: the last entry.
        self._player = player[work.place]
        duration = work.graph.tasks.duration
        self._measured = duration
        self._other: I64 = np.rint(duration * factor[work.place]).astype(np.int64)
        self.players = [int(each) for each in np.unique(self._player) if each >= 0]
        """Numbers of the causes; the number after the last cause means all other causes."""

    def step_ns(self, coalition: int) -> float:
        """The mean step with the changes of these players, bit k for the k-th, in effect."""
        active = [each for k, each in enumerate(self.players) if coalition >> k & 1]
        changed = np.isin(self._player, active)
        mine = ~changed if self._gone else changed
        return self._simulated(np.where(mine, self._measured, self._other))

    def alone(self, player: int) -> float:
        """What a player adds to the step as it is; what is gone, to the step as it was."""
        own = 1 << self.players.index(player)
        if self._gone:
            return self.step_ns(own) - self.step_ns(0)
        return self.step_ns(self.everyone) - self.step_ns(self.everyone ^ own)

    @property
    def everyone(self) -> int:
        """The coalition of all."""
        return (1 << len(self.players)) - 1

    def with_more(self, player: int, ns: float) -> float:
        """The mean step if all tasks of a player took that much longer, together and per step."""
        own = self._player == player
        total = float(self._measured[own & (self.graph.tasks.step >= 0)].sum()) / len(self.graph.steps)
        longer = np.rint(self._measured * (1 + ns / total)).astype(np.int64)
        return self._simulated(np.where(own, longer, self._measured))

    def _simulated(self, duration: I64) -> float:
        return float(simulate(self.graph, duration).steps_ns.mean())


def _share_out(
    found: Diff, named: Sequence[DiffCause], games: Sequence[_Game], played: Sequence[_Game]
) -> Counterfactual:
    most = int(np.clip(TASKS / max(len(game.graph) for game in played), FEWEST_SIMULATIONS, MOST_SIMULATIONS))
    total = [0.0] * (len(named) + 1)
    added = [0.0] * (len(named) + 1)
    exact = True
    for game in played:
        count = len(game.players)
        of_players, all_orders = shapley(count, game.step_ns, most // len(played))
        exact &= all_orders
        for player, share in zip(game.players, of_players, strict=True):
            total[player] += share
            added[player] += game.alone(player)
    whole_ns = rounded(np.array(total), round(sum(total))).tolist()
    beyond_ns = found.delta_ns - sum(whole_ns)
    if abs(beyond_ns) > max(MISSED * abs(found.delta_ns), MISSED_OF_STEP * found.base_ns):
        missed = format_quantity(beyond_ns, "ns", signed=True)
        return Counterfactual(refused=f"different durations of the same work leave {missed} of the change unexplained")
    shares = [
        _share(cause, whole_ns[player], added[player], found, partial(_slack, games[1], player, found.new_ns))
        for player, cause in enumerate(named)
    ]
    shares.sort(key=lambda share: -abs(share.share_ns))
    return Counterfactual(tuple(shares), whole_ns[-1], beyond_ns, exact)


def _share(cause: DiffCause, share_ns: int, added_ns: float, found: Diff, slack: Callable[[], int | None]) -> Share:
    slower = cause.certain and cause.delta_ns >= LEAST_SHARE * found.base_ns
    latent = slower and max(added_ns, share_ns) <= LATENT * cause.delta_ns
    slack_ns = slack() if latent else None
    # Without slack it is on the critical path: all that it takes from now on is the step's.
    latent &= slack_ns is None or slack_ns >= LATENT * cause.delta_ns
    return Share(cause, share_ns, round(found.new_ns - added_ns), latent, slack_ns if latent else None)


def _slack(game: _Game, player: int, most_ns: int) -> int | None:
    """How much longer it can take at no more than `LATENT` of that to the step; `None` for more than `most_ns`.

    What a step pays grows faster than the task, so halving finds it.
    """
    now = game.step_ns(game.everyone)

    def is_free(ns: float) -> bool:
        return game.with_more(player, ns) - now <= LATENT * ns

    if is_free(most_ns):
        return None
    low, high = 0.0, float(most_ns)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_free(middle) else (low, middle)
    return round(low)
