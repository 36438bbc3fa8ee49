"""Rounds of two workers, seen without workers."""

import contextlib
from types import SimpleNamespace

import pytest

from pytest_perfdl import rounds
from pytest_perfdl.rounds import Rounds, Side


class Remote:
    """A worker that waits for its turn once, and may die then."""

    def __init__(self, dies):
        self.dies = dies
        self.waits = False
        self.over = False
        self.ended = []
        self.phases, self.results, self.origins = {}, [], None

    def advance(self):
        self.waits = True

    def take_turn(self):
        self.waits = False
        self.over = True
        if self.dies:
            raise RuntimeError("the worker died")

    def end(self, *, gently):
        self.ended.append(gently)


@pytest.mark.parametrize("dying", ["base", "head"])
def test_when_one_side_dies_the_other_ends_at_once(dying, monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    started = {}

    def start(test, script, *, checkout, against, side):
        started[side] = Remote(side == dying)
        return started[side]

    bench = SimpleNamespace(start=start, config=None)
    pair = Rounds(
        bench,
        None,
        Side("base", variant="base"),
        Side("head", variant="head"),
        lambda _: contextlib.nullcontext(),
        seed=1,
        profiled=False,
    )
    with pytest.raises(RuntimeError, match="the worker died"):
        pair.measure(1)
    assert [remote.ended for remote in started.values()] == [[True], [True]]
