"""What loads beside the processes of a test is held while they are timed or profiled."""

import contextlib

from pytest_perfdl.measure.commands import Count, DescribeCases, Finish, OpenCase, Profile, Settle, Time, TimeCase
from pytest_perfdl.run.processes import undisturbed

HELD = (Time(1, 4), Profile(2, 1, "", exemplar=False), TimeCase(4), DescribeCases(("a",)))
NOT_HELD = (Settle(4, 8, 2), Count(1, "", flops=False), OpenCase("a", 3), Finish())


def test_what_loads_is_held_beside_timed_and_profiled_steps_and_the_script_is_the_same():
    held, seen, results = [], [], []

    def script():
        answered = 0
        # Waiting for the other side's turn, `None`, changes nothing.
        for command in (*HELD, None, *NOT_HELD):
            answered += yield command
        return answered

    def drive():
        results.append((yield from undisturbed(script(), held.append)))

    driven, answer = drive(), None
    with contextlib.suppress(StopIteration):
        while True:
            seen.append(driven.send(answer))
            answer = len(seen)
    assert seen == [*HELD, None, *NOT_HELD]
    assert results == [sum(range(1, len(seen) + 1))]
    assert held == [True] * len(HELD) + [False] * len(NOT_HELD)
