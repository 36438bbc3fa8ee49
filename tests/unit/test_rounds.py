"""Rounds of two workers, seen without workers."""

import contextlib
from types import SimpleNamespace

import pytest

from pytest_perfdl import rounds
from pytest_perfdl.isolate.forks import ForkError
from pytest_perfdl.isolate.messages import Shown
from pytest_perfdl.isolate.process import WorkerDied
from pytest_perfdl.judge.rounds import orders
from pytest_perfdl.rounds import Rounds, Side


class Remote:
    """A worker that waits for its turn once, and may die then."""

    def __init__(self, error=None):
        self.error = error
        self.waits = False
        self.over = False
        self.ended = []
        self.phases, self.results, self.origins = {}, [], None

    def advance(self):
        self.waits = True

    def take_turn(self):
        self.waits = False
        self.over = True
        if self.error is not None:
            raise self.error

    def end(self, *, gently):
        self.ended.append(gently)


def in_rounds(start, serving=lambda _: contextlib.nullcontext(), parent=None, shown=None):
    """Rounds whose workers are made by `start(side)`, or by `start(side, parent)` where there may be a parent."""

    def begin(test, script, *, checkout, against, side, parent):
        return start(side) if shown is None else start(side, parent)

    bench = SimpleNamespace(start=begin, parent=parent, config=None)
    sides = Side("base", variant="base"), Side("head", variant="head")
    return Rounds(bench, None, *sides, serving, seed=1, profiled=False, shown=shown)


@pytest.mark.parametrize("dying", ["base", "head"])
def test_when_one_side_dies_the_other_ends_at_once(dying, monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    started = {}

    def start(side):
        started[side] = Remote(RuntimeError("the worker died") if side == dying else None)
        return started[side]

    with pytest.raises(RuntimeError, match="the worker died"):
        in_rounds(start).measure(1)
    assert [remote.ended for remote in started.values()] == [[True], [True]]


@pytest.mark.parametrize("for_memory", [True, False])
def test_two_of_which_the_system_killed_one_for_its_memory_are_measured_in_turn(for_memory, monkeypatch):
    kills = [0]
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    monkeypatch.setattr(rounds, "kills_for_memory", lambda: kills[0])
    started, served = [], []

    def start(side):
        started.append(Remote(WorkerDied("killed by SIGKILL") if not started else None))
        return started[-1]

    @contextlib.contextmanager
    def serving(remote):
        try:
            yield
        except WorkerDied as error:
            served.append(str(error))
            raise

    take_turn = Remote.take_turn

    def dies(remote):
        kills[0] += for_memory and remote.error is not None
        take_turn(remote)

    monkeypatch.setattr(Remote, "take_turn", dies)
    pair = in_rounds(start, serving)
    if for_memory:
        pair.measure(1)
        assert (len(started), served) == (4, []), "two that were ended, then one after the other"
    else:
        with pytest.raises(WorkerDied):
            pair.measure(1)
        assert (len(started), served) == (2, ["killed by SIGKILL"])


SHOWN = (Shown(), Shown())


def test_both_sides_of_a_round_are_forked_from_one_parent_in_the_order_of_the_coin(monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    begun = []

    def start(side, parent):
        begun.append((side, parent))
        return Remote()

    parents = iter(range(100))
    pair = in_rounds(start, parent=lambda test, shown: f"parent {next(parents)}", shown=SHOWN)
    measured = [pair.measure(number) for number in range(1, 13)]
    drawn = orders(1, 12)
    assert len(set(drawn)) == 2
    for number, (order, each) in enumerate(zip(drawn, measured, strict=True)):
        first, second = begun[2 * number : 2 * number + 2]
        assert (each.order, each.start) == (order, "forked")
        assert order.startswith(first[0]), "the coin says which side begins"
        assert {first[0], second[0]} == {"base", "head"}
        assert first[1] == second[1] == f"parent {number}", "both sides begin in the same way"
    assert pair.start_reason == ""


def test_without_what_the_first_processes_showed_both_sides_are_started(monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    pair = in_rounds(lambda side: Remote())
    assert pair.measure(1).start == "started"
    assert "no started process" in pair.start_reason


def test_where_the_parent_is_refused_both_sides_are_started_from_then_on(monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    asked, begun = [], []

    def refuse(test, shown):
        asked.append(shown)
        raise ForkError("importing its modules starts 2 more threads")

    def start(side, parent):
        begun.append(parent)
        return Remote()

    pair = in_rounds(start, parent=refuse, shown=SHOWN)
    assert [pair.measure(number).start for number in (1, 2)] == ["started", "started"]
    assert pair.start_reason == "importing its modules starts 2 more threads"
    assert (asked, begun) == ([SHOWN], [None] * 4)


@pytest.mark.parametrize("failure", ["fork", "death", "test"])
@pytest.mark.parametrize("failing", [1, 2])
def test_a_round_of_which_one_side_cannot_be_forked_is_started_as_a_whole(failure, failing, monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    monkeypatch.setattr(rounds, "kills_for_memory", lambda: 0)
    begun, remotes = [], []

    def start(side, parent):
        begun.append((side, parent))
        fails = parent is not None and len(begun) == failing
        if fails and failure == "fork":
            raise ForkError("the process to fork from has ended")
        remotes.append(Remote())
        if fails:
            if failure == "death":
                remotes[-1].error = WorkerDied("the worker process was killed by SIGSEGV\nhere")
            else:
                monkeypatch.setattr(
                    rounds, "_failure", lambda remote, _: "E no" if remote is remotes[failing - 1] else ""
                )
        return remotes[-1]

    pair = in_rounds(start, parent=lambda test, shown: "parent", shown=SHOWN)
    assert pair.measure(1).start == "started"
    first = orders(1, 1)[0].partition(" ")[0]
    assert next(side for side, parent in begun if parent is None) == first, "the order stays as it was drawn"
    assert [parent for _, parent in begun[-2:]] == [None, None]
    assert all(remote.over or remote.ended for remote in remotes)
    assert pair.start_reason in (
        "the process to fork from has ended",
        "forked, the worker process was killed by SIGSEGV",
        "the test passed in a started process and not in a forked one",
    )
    assert pair.measure(2).start == "started"
