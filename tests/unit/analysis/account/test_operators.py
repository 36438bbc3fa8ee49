"""Operators of steps, counted, timed and digested one by one."""

import hashlib
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.analysis.account.accounts import thread_operators
from pytest_perfdl.analysis.account.signatures import step_signatures
from pytest_perfdl.analysis.events.steps import steps_of
from unit.trace.chrome import MAIN, step, trace, x

FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def found(read):
    return thread_operators(read, steps_of(read), (MAIN, MAIN))


def signature(*texts):
    """Digest of names and shapes of a step with one thread as it stands in every baseline."""
    text = b"".join(b"%b\0%b\n" % (name, dims) for name, dims in texts)
    for _ in ("of the thread", "of all"):
        text = hashlib.blake2b(text, digest_size=8).hexdigest().encode()
    return text.decode()


def test_signatures_stay_what_baselines_hold():
    read = trace(
        step(1, 0, 100),
        x("b", 20, 5),
        x("a", 10, 5, **{"Input Dims": [[2, 3], []]}),
        x(FETCH, 40, 20, "user_annotation"),
        x("fetched", 45, 5),
        step(2, 100, 100),
        x("c", 120, 5, tid=9),
    )
    assert step_signatures(read) == (signature((b"a", b"[[2,3],[]]"), (b"b", b"")), signature())
    operators = found(read)
    assert operators.names == ({"a": 1, "b": 1, "fetched": 1}, {})
    assert list(operators.names[0]) == ["a", "b", "fetched"]
    assert operators.self_ns == {"a": 5_000, "b": 5_000, "fetched": 0}
    assert [sum(each.values()) for each in operators.class_ns] == [10_000, 0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-10, 110), st.integers(0, 40)), max_size=12))
@settings(max_examples=100, deadline=None)
def test_every_moment_of_a_step_counts_for_the_operator_that_started_last(events):
    read = trace(step(1, 0, 40), step(2, 50, 40), *(x(name, ts, duration) for name, ts, duration in events))
    operators = found(read)
    events = sorted(events, key=lambda event: (event[1], -event[2]))
    names, per_step = Counter(), [0, 0]
    for moment in (*range(40), *range(50, 90)):
        running = [name for name, ts, duration in events if ts <= moment < ts + duration]
        if running:
            names[running[-1]] += 1000
            per_step[moment >= 50] += 1000
    assert +Counter(operators.self_ns) == names
    assert [sum(each.values()) for each in operators.class_ns] == per_step
    inside = [[name for name, ts, _ in events if first <= ts < first + 40] for first in (0, 50)]
    assert operators.names == tuple(map(Counter, inside))
    assert step_signatures(read) == tuple(signature(*((name.encode(), b"") for name in step)) for step in inside)
