"""What loads beside the processes of a test is held while they are timed or profiled, and what every test loads."""

import contextlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pytest_perfdl.measure.commands import Count, DescribeCases, Finish, OpenCase, Profile, Settle, Time, TimeCase
from pytest_perfdl.run.processes import Processes, Start, least_loaded, undisturbed

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


def test_what_every_test_loads_is_known_unless_a_stub_stands_for_it(monkeypatch):
    found = dict(least_loaded().modules)
    assert list(found) == ["torch", "numpy.random"]
    assert all(Path(file).is_file() for file in found.values())
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert least_loaded() is None


@pytest.mark.parametrize(
    ("nodeid", "parent", "is_forked"),
    [
        ("test_a.py::test_step", SimpleNamespace(alive=True), True),
        ("test_a.py::test_step", SimpleNamespace(alive=False), False),
        ("test_a.py::test_step", None, False),
        ("test_b.py::test_step", SimpleNamespace(alive=True), False),
    ],
)
def test_the_next_process_of_a_test_is_forked_as_the_last_one_was(nodeid, parent, is_forked):
    processes = Processes.__new__(Processes)
    processes._last = Start(nodeid, parent, unfrozen=True)
    found = processes.last_fork(SimpleNamespace(item=SimpleNamespace(nodeid="test_a.py::test_step")))
    assert found == (processes._last if is_forked else None)
