"""Where memory is looked into, and at which line a change of it is told."""

import pytest

from pytest_perfdl.model.memory import MemoryAccount, MemoryRow
from pytest_perfdl.results.verdict import Judgement, MetricVerdict
from pytest_perfdl.run.definitions import Touched
from pytest_perfdl.run.memory_accounts import _place_row, _unequal, memory_differs


def judgement(name, base, new, effect):
    return Judgement("test", "changed", "", (MetricVerdict(name, "counted", "B", "lower", base, new, effect),))


@pytest.mark.parametrize(
    ("name", "base", "new", "effect", "differs"),
    [
        ("peak_memory", 100, 101, 0.01, True),
        ("peak_memory", 100, 90, -0.1, True),
        ("peak_memory", 100, 100, 0.0, False),
        # Repeats of a side that disagree say nothing for certain.
        ("peak_memory", 100, 101, None, False),
        ("static_memory", 100, 101, 0.01, True),
        ("growth", 0, 4, None, True),
        ("growth", 0, 0, 0.0, False),
        ("peak_memory", None, 100, None, False),
        ("alloc_bytes", 100, 200, 1.0, False),
    ],
)
def test_a_difference_for_certain(name, base, new, effect, differs):
    assert memory_differs(judgement(name, base, new, effect)) is differs
    assert memory_differs(judgement(name, base, new, effect), "") is differs
    assert memory_differs(judgement(f"loss.{name}", base, new, effect), "loss") is differs
    assert not memory_differs(judgement(f"loss.{name}", base, new, effect), "")


ROW = MemoryRow(
    *("activations", "Net.fc", "model.py(20): Block.forward", "forward", "aten::mm", "float32", "[4]", 1, 8, 1, None),
    callers=("model.py(40): Net.forward", "train.py(9): step"),
)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ((), "model.py(20): Block.forward"),
        ((Touched("src/model.py", "forward", "Net"),), "model.py(40): Net.forward"),
        # The innermost that changed.
        ((Touched("train.py", "step"), Touched("src/model.py", "forward", "Net")), "model.py(40): Net.forward"),
        ((Touched("src/model.py", "forward", "Block"),), "model.py(20): Block.forward"),
        ((Touched("src/model.py", "forward", "Other"),), "model.py(20): Block.forward"),
        ((Touched("other/train.py", "stop"),), "model.py(20): Block.forward"),
        ((Touched("train.py", "step"),), "train.py(9): step"),
    ],
)
def test_a_row_is_told_at_the_innermost_line_whose_function_changed(changed, line):
    placed = _place_row(ROW, changed)
    assert placed.line == line
    assert sorted((placed.line, *placed.callers)) == sorted((ROW.line, *ROW.callers))


def test_an_account_of_another_peak_than_the_counted_one_says_so():
    from making import counted, record

    account = MemoryAccount("cpu", (), 2048, 0, 1, notes=("8 bytes are odd",))
    new = record({"step_time": counted(1), "peak_memory": counted(1024, unit="B")})
    (found,) = _unequal(account, new, "", "current")
    assert found.message == (
        "the memory breakdown (current) adds up to 2.000 KiB, but the measured peak is 1.000 KiB (8 bytes are odd)"
    )
    same = record({"step_time": counted(1), "peak_memory": counted(2048, unit="B")})
    assert _unequal(account, same, "", "current") == []
    # Repeats that disagree are no figure to hold it against.
    unstable = record({"step_time": counted(1, 1), "peak_memory": counted(1024, 1025, unit="B")})
    assert _unequal(account, unstable, "", "current") == []
