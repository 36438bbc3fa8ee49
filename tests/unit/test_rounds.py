"""Rounds of two workers, seen without workers."""

import contextlib
from types import SimpleNamespace

import pytest

from pytest_perfdl import rounds
from pytest_perfdl.isolate.process import WorkerDied
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


def in_rounds(start, serving=lambda _: contextlib.nullcontext()):
    bench = SimpleNamespace(start=lambda test, script, *, checkout, against, side: start(side), config=None)
    sides = Side("base", variant="base"), Side("head", variant="head")
    return Rounds(bench, None, *sides, serving, seed=1, profiled=False)


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
