"""One peak's account subtracted from another: what became of each row, and which rows are one cause."""

import random
from dataclasses import replace

import pytest

from pytest_perfdl.diff.memory import peak_causes, subtract_rows
from pytest_perfdl.model.memory import CATEGORIES, MemoryAccount, MemoryRow
from pytest_perfdl.model.step_part import common_module

LINE = "model.py(12): Net.forward"


def row(size, category="activations", **known):
    """Tensors of `size` bytes in all; by default one of float32, of a layer's forward pass, saved until its end."""
    fields = {
        "module": "Net.fc",
        "line": LINE,
        "phase": "forward",
        "operator": "aten::linear",
        "dtype": "float32",
        "shape": f"[{size // 4}]",
        "tensors": 1,
        "lives_from": 10,
        "lives_to": 90,
    }
    return MemoryRow(category=category, bytes=size, **(fields | known))


def of_parameter(size, name="Net.fc.weight", line="model.py(4): Net.__init__", **known):
    """A parameter, its gradient, and its optimizer's state."""
    static = {"lives_from": -1, "lives_to": None, "module": name.rpartition(".")[0], "parameters": (name,)}
    backward = {"line": "train.py(9): step", "phase": "backward", "operator": "AddmmBackward0"}
    optimizer = {"line": "train.py(10): step", "phase": "optimizer", "operator": "aten::zeros_like", "tensors": 2}
    return (
        row(size, "parameters", **(static | {"line": line, "phase": "setup", "operator": "aten::empty"} | known)),
        row(size, "gradients", **(static | backward | known)),
        row(2 * size, "optimizer state", **(static | optimizer | {"shape": f"[{size // 4}]"} | known)),
    )


def account(*rows, passed=(), moment=None, at_ns=50):
    total = sum(each.bytes for each in rows)
    ordered = tuple(sorted(rows, key=lambda each: -each.bytes))
    return MemoryAccount("cpu", ordered, total, at_ns, 100, passed=tuple(passed), moment=moment)


def causes(base, new, **options):
    found = peak_causes(base, new, **options)
    assert sum(cause.bytes for cause in found) == new.peak_bytes - base.peak_bytes
    assert sum(change.bytes for change in subtract_rows(base, new)) == new.peak_bytes - base.peak_bytes
    assert all(cause.bytes for cause in found)
    return found


def only(base, new, **options):
    """The one row that changed, as it is the one cause."""
    (cause,) = causes(base, new, **options)
    (change,) = cause.changes
    return change


KEPT_UP = row(1000, "parameters", line="model.py(3): Net.__init__", phase="setup", parameters=("Net.w",))
"""On both sides."""


# What became of tensors


def test_equal_accounts():
    base = account(KEPT_UP, row(8), row(16, shape="[2, 2]"), *of_parameter(400))
    assert causes(base, base) == ()
    assert [change.bytes for change in subtract_rows(base, base)] == [0] * len(base.rows)
    assert all(change.base == change.new for change in subtract_rows(base, base))


def test_nothing_at_all():
    assert causes(account(), account()) == ()


@pytest.mark.parametrize(
    "base, new, movement",
    [
        ({"size": 8}, {"size": 24, "tensors": 3, "shape": "[2]"}, "more"),
        ({"size": 24, "tensors": 3, "shape": "[2]"}, {"size": 8}, "fewer"),
        ({"size": 8}, {"size": 16}, "larger"),
        ({"size": 16}, {"size": 8}, "smaller"),
        ({"size": 8, "shape": "[2, 1]"}, {"size": 16, "shape": "[2, 2]", "tensors": 2}, "larger"),
        ({"size": 8, "shape": "[4]", "dtype": "float16"}, {"size": 16, "shape": "[4]"}, "dtype"),
        ({"size": 16, "shape": "[4]"}, {"size": 8, "shape": "[4]", "dtype": "bfloat16"}, "dtype"),
        ({"size": 8, "shape": "[4]", "dtype": ""}, {"size": 16, "shape": "[4]"}, "larger"),
        ({"size": 8, "shape": "[4]"}, {"size": 16, "shape": "[4]", "dtype": ""}, "larger"),
        ({"size": 8, "shape": "[2]"}, {"size": 12, "shape": "[2]"}, "larger"),
    ],
)
def test_what_became_of_a_row(base, new, movement):
    change = only(account(KEPT_UP, row(**base)), account(KEPT_UP, row(**new)))
    assert change.movement == movement
    assert (change.base, change.new) == (row(**base), row(**new))


def test_new_and_gone():
    base, new = account(KEPT_UP), account(KEPT_UP, row(8))
    found = only(base, new)
    assert (found.movement, found.base, found.bytes) == ("new", None, 8)
    found = only(new, base)
    assert (found.movement, found.new, found.bytes) == ("gone", None, -8)


def test_what_lives_longer():
    """The peak is at the same place, and the other side has allocated as much and freed it before."""
    moment = row(64, "temporaries", operator="aten::softmax")
    base = account(KEPT_UP, moment, passed=[row(8)], moment=moment)
    new = account(KEPT_UP, moment, row(8), moment=moment)
    assert only(base, new).movement == "longer"
    assert only(new, base).movement == "shorter"


def test_the_peak_is_at_another_moment():
    forward, backward = row(64, "temporaries"), row(64, "temporaries", phase="backward", operator="MulBackward0")
    base = account(KEPT_UP, forward, passed=[backward], moment=forward)
    extra = row(8, module="Loss", line="model.py(40): Loss.forward")
    new = account(KEPT_UP, backward, extra, passed=[forward], moment=backward)
    for one, other, way in ((base, new, 1), (new, base, -1)):
        found = {
            (change.movement, change.row, change.bytes) for cause in causes(one, other) for change in cause.changes
        }
        came = "new" if way > 0 else "gone"
        assert found == {(came, extra, way * 8), ("moment", forward, way * -64), ("moment", backward, way * 64)}


@pytest.mark.parametrize(
    "base, new, movement",
    [
        (None, None, "longer"),
        (row(4), None, "moment"),
        (None, row(4), "moment"),
        (row(4), row(4), "longer"),
        (row(4), row(400), "longer"),
        (row(4), row(4, line="model.py(13): Net.forward"), "longer"),
        (row(4), row(4, "temporaries"), "longer"),
        (row(4), row(4, module="Net.out"), "moment"),
        (row(4), row(4, operator="aten::mm"), "moment"),
        (row(4), row(4, phase="backward"), "moment"),
        (row(4), row(4, line="model.py(13): Net.other"), "moment"),
        (row(4), row(4, dtype="float16"), "moment"),
    ],
)
def test_whether_peaks_are_at_the_same_place(base, new, movement):
    extra = row(8, operator="aten::relu")
    found = only(account(KEPT_UP, passed=[extra], moment=base), account(KEPT_UP, extra, moment=new))
    assert found.movement == movement


@pytest.mark.parametrize(
    "other, movement",
    [
        ({}, "longer"),
        ({"category": "temporaries"}, "longer"),
        ({"line": "model.py(99): Net.forward"}, "longer"),
        ({"shape": "[2, 1]"}, "new"),
        ({"dtype": "float16"}, "new"),
        ({"operator": "aten::mm"}, "new"),
        ({"module": "Net.out"}, "new"),
        ({"phase": "backward"}, "new"),
        ({"line": "model.py(12): Net.other"}, "new"),
    ],
)
def test_what_the_other_side_had_allocated_too(other, movement):
    passed = replace(row(8), **other)
    assert only(account(KEPT_UP, passed=[passed]), account(KEPT_UP, row(8))).movement == movement


def test_what_an_earlier_step_left_is_new_even_if_each_step_allocates_it():
    kept = row(8, kept=True, lives_from=-5)
    assert only(account(KEPT_UP, passed=[row(8)]), account(KEPT_UP, kept)).movement == "new"


def test_what_was_kept_is_no_counterpart_of_what_was_not():
    base, new = account(KEPT_UP, row(8)), account(KEPT_UP, row(8), row(8, kept=True, lives_from=-5))
    assert only(base, new).new.kept


# Which rows are each other's counterpart


@pytest.mark.parametrize(
    "other",
    [
        {"line": "model.py(99): Net.forward"},
        {"line": "model.py(99): Net.forward", "shape": "[4, 2]"},
        {"line": "model.py(99): Net.forward", "shape": "[4, 2]", "dtype": "int64"},
        {"line": "model.py(99): Net.forward", "operator": "aten::mm"},
        {"line": "model.py(99): Net.forward", "category": "temporaries"},
        {"line": "model.py(12): Net.renamed"},
        {"line": "other.py(12): Net.forward", "module": "Other.fc"},
        {"line": "model.py(9): Net.forward", "shape": "[4]", "dtype": "", "operator": "", "category": "temporaries"},
    ],
    ids=str,
)
def test_counterparts(other):
    """Rows that have less in common than all, from the most to the least."""
    base, new = row(8, shape="[2]"), replace(row(8, shape="[2]"), bytes=64, **other)
    found = only(account(KEPT_UP, base), account(KEPT_UP, new))
    assert (found.base, found.new) == (base, new)


@pytest.mark.parametrize(
    "other",
    [
        {"phase": "backward"},
        {"kept": True},
        {"line": "other.py(12): f", "operator": "aten::mm"},
        {"module": "Net.out", "shape": "[4]"},
        {"module": "Net.out", "operator": "aten::mm"},
    ],
    ids=str,
)
def test_no_counterparts(other):
    new = replace(row(8), bytes=64, **other)
    assert {change.movement for change in subtract_rows(account(row(8)), account(new))} == {"new", "gone"}


def test_lines_that_an_edit_moved_still_match():
    """A line before them came in; a second one that allocates the same came with it."""
    base = account(
        *(row(8 * each, line=f"model.py({10 + each}): Net.forward", shape=f"[{each}]") for each in (1, 2, 3))
    )
    moved = [replace(each, line=each.line.replace("(1", "(11")) for each in base.rows]
    assert causes(base, account(*moved)) == ()
    extra = row(40, line="model.py(115): Net.forward", shape="[10]", operator="aten::cat")
    assert only(base, account(*moved, extra)).new == extra


def test_the_most_alike_comes_first():
    """A row of the very line is taken before one of the function, whatever the order and the sizes."""
    here, there = row(8, line="model.py(1): f", shape="[2]"), row(8, line="model.py(2): f", shape="[2]")
    new = account(replace(there, bytes=80), replace(here, bytes=800))
    pairs = {(each.base.line, each.new.line) for each in subtract_rows(account(here, there), new)}
    assert pairs == {(line, line) for line in ("model.py(1): f", "model.py(2): f")}


def test_another_category_of_the_same_is_more_alike_than_another_operator():
    same, other = row(8, "temporaries", shape="[2]"), row(64, "temporaries", shape="[9]", operator="aten::mm")
    new = replace(row(64), shape="[2]")
    pairs = {(each.base, each.new) for each in subtract_rows(account(same, other), account(new))}
    assert pairs == {(same, new), (other, None)}


def test_of_several_counterparts_the_nearest_in_size():
    base = account(row(8, line="model.py(1): f", shape=""), row(800, line="model.py(2): f", shape=""))
    new = account(row(808, line="model.py(11): f", shape=""))
    assert {(each.movement, each.bytes) for each in subtract_rows(base, new)} == {("larger", 8), ("gone", -8)}


# Which rows are one cause


def test_a_parameter_its_gradient_and_its_state_are_one_cause():
    base = account(KEPT_UP)
    new = account(KEPT_UP, *of_parameter(400))
    (cause,) = causes(base, new)
    assert (cause.bytes, cause.movement, cause.module) == (1600, "new", "Net.fc")
    assert [change.row.category for change in cause.changes] == ["parameters", "optimizer state", "gradients"]
    assert cause.row.line == "model.py(4): Net.__init__", "that of the constructor"


def test_a_parameter_that_grows_is_one_cause_too():
    (cause,) = causes(account(KEPT_UP, *of_parameter(400)), account(KEPT_UP, *of_parameter(800)))
    assert (cause.bytes, cause.movement, len(cause.changes)) == (1600, "larger", 3)


def test_an_optimizer_s_state_alone_is_a_cause():
    parameter, gradient, state = of_parameter(400)
    (cause,) = causes(account(parameter, gradient), account(parameter, gradient, state))
    assert (cause.row.category, cause.row.line) == ("optimizer state", "train.py(10): step")


def test_parameters_of_one_line_are_one_cause_and_of_another_another():
    blocks = [of_parameter(400, f"Net.h.{index}.weight", "model.py(5): Block.__init__") for index in range(3)]
    head = of_parameter(4000, "Net.head.weight", "model.py(9): Net.__init__")
    found = causes(account(KEPT_UP), account(KEPT_UP, *head, *(each for block in blocks for each in block)))
    assert [(cause.bytes, cause.module, len(cause.changes)) for cause in found] == [
        (16_000, "Net.head", 3),
        (4800, "Net.h", 9),
    ]


def test_parameters_that_come_and_go_at_one_line_are_two_causes():
    """Were they one, it would say that nothing of it came."""
    line = "model.py(5): Net.__init__"
    base = account(KEPT_UP, *of_parameter(400, "Net.old.weight", line, operator="aten::ones", shape="[1]"))
    new = account(KEPT_UP, *of_parameter(800, "Net.fresh.weight", line, operator="aten::zeros", shape="[2]"))
    found = causes(base, new)
    assert [(cause.bytes, cause.movement, cause.module) for cause in found] == [
        (3200, "new", "Net.fresh"),
        (-1600, "gone", "Net.old"),
    ]


def test_rows_of_one_line_in_several_modules_are_one_cause():
    """A layer of a block allocates in each of the blocks; the cause is of this layer of any block."""
    rows = [row(8 + 4 * index, module=f"Net.h.{index}.attn") for index in range(3)]
    (cause,) = causes(account(KEPT_UP), account(KEPT_UP, *rows))
    assert (cause.bytes, cause.module, len(cause.changes)) == (8 + 12 + 16, "Net.h.*.attn", 3)
    assert cause.row == rows[2], "the largest says what it is"


@pytest.mark.parametrize(
    "other",
    [
        {"category": "temporaries"},
        {"line": "model.py(13): Net.forward"},
        {"kept": True},
    ],
    ids=str,
)
def test_rows_that_differ_in_this_are_two_causes(other):
    new = account(KEPT_UP, row(8), replace(row(80, module="Net.out"), **other))
    assert len(causes(account(KEPT_UP), new)) == 2


def test_kept_rows_of_one_line_are_one_cause_whatever_they_are():
    new = account(KEPT_UP, row(8, kept=True), row(80, "temporaries", module="Net.out", kept=True))
    (cause,) = causes(account(KEPT_UP), new)
    assert cause.bytes == 88


def test_what_comes_and_what_lives_longer_at_one_line_are_two_causes():
    longer = row(80, operator="aten::relu")
    found = causes(account(KEPT_UP, passed=[longer]), account(KEPT_UP, row(8), longer))
    assert [(cause.bytes, cause.movement) for cause in found] == [(80, "longer"), (8, "new")]


def test_what_comes_and_what_goes_at_one_line_are_two_causes():
    found = causes(account(KEPT_UP, row(8, "inputs", phase="input")), account(KEPT_UP, row(80, "inputs")))
    assert [(cause.bytes, cause.movement) for cause in found] == [(80, "new"), (-8, "gone")]


def test_rows_without_a_line_are_one_cause_by_category():
    rows = [row(8, line="", operator=f"aten::{name}") for name in ("mm", "add")]
    (cause,) = causes(account(KEPT_UP), account(KEPT_UP, *rows, row(2000, line="")), placed=lambda each: each)
    assert cause.bytes == 2016


def test_placed_gives_the_line_that_causes_are_grouped_by():
    """Two lines of a helper, that one line called."""
    called = "model.py(30): Net.forward"
    rows = [row(8 * each, line=f"helper.py({each}): f", callers=(called,), shape=f"[{each}]") for each in (1, 2)]
    base, new = account(KEPT_UP), account(KEPT_UP, *rows)
    assert len(causes(base, new)) == 2

    def placed(each):
        return replace(each, line=called, callers=(each.line,))

    (cause,) = causes(base, new, placed=placed)
    assert (cause.row.line, cause.bytes) == (called, 24)


def test_placed_gets_the_rows_that_differ_alone():
    asked = []

    def placed(each):
        asked.append(each)
        return each

    causes(account(KEPT_UP, row(8)), account(KEPT_UP, row(16)), placed=placed)
    assert asked == [row(8), row(16)]


# Which cause comes first


def test_what_goes_the_peak_s_way_comes_first():
    base = account(row(100, operator="aten::a", line="m.py(1): f"))
    new = account(
        row(150, operator="aten::b", phase="backward", line="m.py(2): g"),
        row(10, operator="aten::c", phase="optimizer", line="m.py(3): h"),
    )
    assert [cause.bytes for cause in causes(base, new)] == [150, 10, -100]
    assert [cause.bytes for cause in causes(new, base)] == [-150, -10, 100]


def test_what_another_moment_has_comes_after_what_the_other_side_has_nowhere():
    moment = row(4, phase="backward", line="m.py(9): z")
    other = row(1000, operator="aten::a", line="m.py(1): f")
    base = account(KEPT_UP, passed=[other, moment], moment=None)
    new = account(KEPT_UP, other, row(8, operator="aten::b", line="m.py(2): g"), moment, moment=moment)
    found = causes(base, new)
    assert [(cause.bytes, cause.movement) for cause in found] == [(8, "new"), (1000, "moment"), (4, "moment")]


def test_of_these_the_largest():
    rows = [row(8 * each, operator=f"aten::{each}", line=f"m.py({each}): f{each}") for each in (2, 3, 1)]
    assert [cause.bytes for cause in causes(account(), account(*rows))] == [24, 16, 8]


def test_equal_peaks_have_what_came_first():
    base = account(row(8, operator="aten::a", line="m.py(1): f"))
    new = account(row(8, operator="aten::b", line="m.py(2): g", phase="backward"))
    assert [cause.bytes for cause in causes(base, new)] == [8, -8]


def test_common_module():
    assert common_module(["Net.h.0.attn"]) == "Net.h.0.attn"
    assert common_module(["Net.h.0", "Net.h"]) == "Net.h"
    assert common_module(["Net.h1", "Net.h2"]) == "Net"
    assert common_module(["Net", "Other"]) == ""


# Whatever the accounts


def random_account(rng):
    def one():
        count = rng.randint(1, 3)
        return row(
            4 * count * rng.randint(1, 9),
            rng.choice(CATEGORIES),
            module=rng.choice(("", "Net.a", "Net.b")),
            line=rng.choice(("", "m.py(1): f", "m.py(2): f", "m.py(3): g")),
            phase=rng.choice(("setup", "forward", "backward")),
            operator=rng.choice(("", "aten::mm", "aten::add")),
            dtype=rng.choice(("", "float32", "float16")),
            shape=rng.choice(("", "[2]", "[3]")),
            tensors=count,
            parameters=rng.choice(((), ("Net.a.w",), ("Net.b.w", "Net.a.w"))),
            kept=rng.random() < 0.1,
        )

    passed = [one() for _ in range(rng.randint(0, 4))]
    return account(*(one() for _ in range(rng.randint(0, 12))), passed=passed, moment=rng.choice([None, *passed]))


@pytest.mark.parametrize("seed", range(200))
def test_sums_are_the_difference_of_the_peaks(seed):
    rng = random.Random(seed)
    base, new = random_account(rng), random_account(rng)
    found = causes(base, new)
    pairs = subtract_rows(base, new)
    # Every row of each side is in exactly one pair.
    for side, rows in ((0, base.rows), (1, new.rows)):
        there = [(pair.base, pair.new)[side] for pair in pairs]
        assert sorted(map(repr, filter(None, there))) == sorted(map(repr, rows))
    # The other way round each sum is the opposite.
    assert sum(cause.bytes for cause in causes(new, base)) == -sum(cause.bytes for cause in found)
    # First those that go the peak's way.
    way = 1 if new.peak_bytes >= base.peak_bytes else -1
    ways = [cause.bytes * way > 0 for cause in found]
    assert ways == sorted(ways, reverse=True)
    assert causes(base, base) == ()
