"""Slows a call down by a share of its own time, so that the slowdown is the same whatever the machine does."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TypeVar

T = TypeVar("T")


def slower(call: Callable[[], T], share: float, *, every: int = 1) -> Callable[[], T]:
    """The call, and on every n-th time a busy wait for this share of what it just took."""
    if not share or not every:
        return call
    count = 0

    def slowed() -> T:
        nonlocal count
        count += 1
        started = perf_counter_ns()
        result = call()
        now = perf_counter_ns()
        if count % every == 0:
            until = now + round(share * (now - started))
            while perf_counter_ns() < until:
                pass
        return result

    return slowed
