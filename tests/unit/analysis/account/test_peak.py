"""Whose the memory at a step's peak is: accounts of small lists of allocations, worked out by hand."""

import random
from collections import Counter

import pytest

from pytest_perfdl.analysis.account.peak import (
    CURVE_POINTS,
    GROWING_STEPS,
    MOST_CALLERS,
    MOST_NAMES,
    MOST_PASSED,
    Allocation,
    Recorded,
    Window,
    growing,
    peak_account,
    step_ends,
)
from pytest_perfdl.model.memory import CATEGORIES, Held

STEP = (100, 200)
"""The last step, of those that have no other."""


def a(address, size, begin, end=None, *flags, device="cpu", **known):
    """An allocation; `flags` are fields that are true."""
    return Allocation(address, size, begin, device, end, **dict.fromkeys(flags, True), **known)


def held(size, category=None, name="", *, device="cpu", dtype="float32", shape=None):
    return Held(size, device, dtype, (size // 4,) if shape is None else shape, category, name)


def lines(place):
    """Place 3 is line 3, that line 2 led to, that line 1 led to."""
    return tuple(f"model.py({line}): f{line}" for line in range(place, 0, -1))


def recorded(allocations, steps=(STEP,), foreign=()):
    ordered = sorted(allocations, key=lambda each: each.begin)
    return Recorded(ordered, foreign, [Window(*each) for each in steps], lines)


def account(*allocations, steps=(STEP,), storages=None, foreign=(), device="cpu", **options):
    found = peak_account(recorded(allocations, steps, foreign), storages or {}, device, **options)
    assert found.residual == 0
    for rows in (found.rows, found.passed, found.growing):
        assert [row.bytes for row in rows] == sorted((row.bytes for row in rows), reverse=True)
    assert max(size for _, size in found.curve) == found.peak_bytes
    assert (found.at_ns, found.peak_bytes) in found.curve
    assert [time for time, _ in found.curve] == sorted(time for time, _ in found.curve)
    assert len(found.curve) <= CURVE_POINTS + 2
    assert found.step_ns == steps[-1][1] - steps[-1][0]
    return found


def sizes(rows):
    """Bytes by category, of rows of which each is one tensor of one size."""
    return {row.category: row.bytes for row in rows}


def only(found):
    (row,) = found.rows
    return row


# Which category an allocation has


@pytest.mark.parametrize(
    "allocation, owner, category",
    [
        # Each has all that the later ones have, too, so that the order of precedence is tested.
        (a(1, 8, 5, None, "gradient", "saved", phase="input"), held(8, "parameters"), "parameters"),
        (a(1, 8, 5, None, "gradient", "saved", phase="input"), held(8, "gradients"), "gradients"),
        (a(1, 8, 5, None, "gradient", "saved", phase="input"), held(8, "optimizer state"), "optimizer state"),
        (a(1, 8, 5, None, "gradient", "saved"), held(8), "inputs"),
        (a(1, 8, 5, None, "gradient", "saved"), None, "inputs"),
        (a(1, 8, 120, None, "gradient", "saved", phase="input"), None, "inputs"),
        (a(1, 8, 120, None, "gradient", "saved", "read_by_node", phase="backward"), None, "gradients"),
        (a(1, 8, 120, None, "saved", "by_node", phase="backward"), None, "activations"),
        (a(1, 8, 120, None, "saved", phase="forward"), None, "activations"),
        (a(1, 8, 120, None, "read_by_node", phase="forward"), None, "activations"),
        (a(1, 8, 120, None, "read_by_node", "by_node", phase="backward"), None, "temporaries"),
        (a(1, 8, 120, None, phase="forward"), None, "temporaries"),
        (a(1, 8, 120, None, phase="optimizer"), None, "temporaries"),
    ],
)
def test_the_first_category_that_holds(allocation, owner, category):
    found = account(allocation, storages={} if owner is None else {1: owner})
    assert found.by_category() == {category: 8}


def test_what_python_holds_says_nothing_of_what_comes_to_its_address_later():
    found = account(
        a(1, 8, 5, 110),
        a(1, 64, 120, None, "saved", phase="forward"),
        storages={1: held(8, "parameters", "Net.weight")},
    )
    row = only(found)
    assert (row.category, row.parameters, row.module) == ("activations", (), "")


def test_of_an_earlier_step_it_is_kept():
    """Activations, temporaries, gradients and batches; not what belongs to a model, nor what the test set up."""
    found = account(
        a(1, 1, 5),
        a(2, 2, 20, None, "saved"),
        a(3, 4, 21),
        a(4, 8, 22, None, "gradient"),
        a(5, 16, 23, None, phase="input"),
        a(6, 32, 24),
        a(7, 64, 25),
        a(8, 128, 120, None, "saved"),
        steps=((10, 50), STEP),
        storages={6: held(32, "optimizer state"), 7: held(64)},
    )
    assert {row.bytes: row.kept for row in found.rows} == {
        **dict.fromkeys((1, 32, 128), False),
        **dict.fromkeys((2, 4, 8, 16, 64), True),
    }


def test_a_held_gradient_of_an_earlier_step_counts_as_kept_too():
    """It has been made by a step; what `diff` says of it is what it says of gradients."""
    found = account(a(1, 8, 20), steps=((10, 50), STEP), storages={1: held(8, "gradients", "Net.weight")})
    assert (only(found).category, only(found).parameters) == ("gradients", ("Net.weight",))


# What is alive at the peak


def test_by_hand():
    found = account(
        a(1, 100, 5),
        a(2, 50, 110, 140, "saved"),
        a(3, 70, 120, 130),
        a(4, 90, 150, 180),
        a(5, 5, 160),
        storages={1: held(100, "parameters", "Net.weight")},
    )
    assert (found.peak_bytes, found.at_ns, found.step_ns) == (220, 20, 100)
    assert sizes(found.rows) == {"parameters": 100, "activations": 50, "temporaries": 70}
    assert found.curve == ((0, 100), (10, 150), (20, 220), (30, 150), (40, 100), (50, 190), (60, 195), (80, 105))
    assert [(row.tensors, row.bytes) for row in found.passed] == [(2, 95)]
    lives = {row.category: (row.lives_from, row.lives_to) for row in found.rows}
    assert lives == {"parameters": (-95, None), "activations": (10, 40), "temporaries": (20, 30)}
    assert found.notes == ()


def test_the_first_of_equal_peaks():
    found = account(a(1, 8, 110, 120), a(2, 8, 130, 140, "saved"))
    assert (found.at_ns, found.by_category()) == (10, {"temporaries": 8})


def test_freed_at_the_peak_is_not_alive_there():
    """Times differ by one at least, so that of a free and an allocation one comes first."""
    found = account(a(1, 8, 110, 119), a(2, 8, 120, 130, "saved"), a(3, 1, 121, 129))
    assert (found.at_ns, found.by_category()) == (21, {"activations": 8, "temporaries": 1})


@pytest.mark.parametrize("begin, peak", [(99, 8), (100, 8), (101, 8), (199, 8), (200, 0)])
def test_allocated_at_a_border_of_the_step(begin, peak):
    found = account(a(1, 8, begin))
    assert found.peak_bytes == peak
    assert found.at_ns == (begin - 100 if 100 <= begin < 200 else 0)
    assert [row.lives_from for row in found.rows] == ([begin - 100] if peak else [])


@pytest.mark.parametrize("end, lives_to", [(101, 1), (199, 99), (200, None), (250, None), (None, None)])
def test_freed_at_a_border_of_the_step(end, lives_to):
    found = account(a(1, 8, 50, end))
    assert (only(found).lives_to, found.peak_bytes, found.at_ns) == (lives_to, 8, 0)


def test_freed_before_the_step():
    assert account(a(1, 8, 50, 99)).rows == ()


def test_freed_when_the_step_begins():
    """Whether it counts may be seen either way, but its bytes have a row if they count."""
    found = account(a(1, 8, 50, 100))
    assert sum(row.bytes for row in found.rows) == found.peak_bytes


def test_freed_by_others_when_the_step_begins():
    found = account(foreign=[(100, 7, 8)])
    assert sum(row.bytes for row in found.rows) == found.peak_bytes


def test_the_peak_is_the_step_s_beginning():
    found = account(a(1, 8, 50, 110), a(2, 4, 120), a(3, 1, 60))
    assert (found.peak_bytes, found.at_ns, found.moment) == (9, 0, None)
    assert sum(row.tensors for row in found.rows) == 2


def test_nothing_at_all():
    found = account()
    assert (found.peak_bytes, found.at_ns, found.curve, found.rows, found.moment) == (0, 0, ((0, 0),), (), None)


def test_freed_in_a_later_step():
    """The last step alone counts; what an earlier one allocated and the last one frees is alive at its beginning."""
    found = account(a(1, 8, 20, 110, "saved"), a(2, 64, 30, 60), a(3, 4, 120), steps=((10, 50), STEP))
    assert (found.peak_bytes, found.by_category()) == (8, {"activations": 8})
    assert only(found).lives_to == 10


def test_an_address_that_is_used_again():
    found = account(
        a(1, 8, 20, 105), a(1, 16, 110, 115), a(1, 32, 120, 150, "saved"), a(1, 4, 160), storages={1: held(8)}
    )
    assert (found.peak_bytes, found.by_category()) == (32, {"activations": 32})
    assert [row.bytes for row in found.passed] == [16 + 4]


def test_a_period_of_several_steps_is_one_window():
    """Steps 3 and 4 are the second period; the first step of the first begins what counts as steps."""
    found = account(
        a(1, 1, 5),
        a(2, 2, 12),
        a(3, 4, 115, 160),
        a(4, 8, 155, 158),
        a(5, 16, 170, 175),
        steps=((10, 90), STEP),
    )
    assert (found.peak_bytes, found.at_ns) == (1 + 2 + 16, 70)
    assert [(row.bytes, row.category, row.kept) for row in found.rows] == [
        (16, "temporaries", False),
        (2, "temporaries", True),
        (1, "inputs", False),
    ]
    assert found.step_ends == (3, 3)


# What the recorder did not see allocated


def test_a_storage_that_python_reaches_and_nobody_saw():
    found = account(
        a(1, 8, 110),
        storages={9: held(40, shape=(5, 2)), 8: held(20, "parameters", "Net.fc.weight"), 7: held(0)},
    )
    assert found.peak_bytes == 68
    rows = {row.category: row for row in found.rows}
    assert rows.keys() == {"inputs", "parameters", "temporaries"}
    numpy = rows["inputs"]
    assert (numpy.shape, numpy.dtype, numpy.phase, numpy.line) == ("[5, 2]", "float32", "setup", "")
    assert numpy.lives_from < 0
    assert numpy.lives_to is None
    weight = rows["parameters"]
    assert (weight.module, weight.parameters) == ("Net.fc", ("Net.fc.weight",))


@pytest.mark.parametrize("time, there", [(105, False), (110, True), (111, True), (190, True)])
def test_such_a_storage_that_is_freed_within_the_step(time, there):
    """At 110 as many bytes come as go later; at 105 it goes before."""
    size = 8 if there else 16
    found = account(a(1, size, 109, 195), storages={9: held(12)}, foreign=[(time, 9, 12)])
    assert found.by_category() == ({"temporaries": 8, "inputs": 12} if there else {"temporaries": 16})


def test_such_a_storage_that_was_resized_counts_as_when_the_step_began():
    found = account(a(1, 8, 110), storages={9: held(12)}, foreign=[(120, 9, 4000)])
    assert (found.peak_bytes, found.curve[-1]) == (20, (20, 8))


def test_a_free_of_what_nobody_saw():
    found = account(a(1, 8, 110), foreign=[(120, 9, 40), (130, 8, 2)])
    assert found.by_category() == {"temporaries": 8, "other": 42}
    (row,) = (row for row in found.rows if row.category == "other")
    assert (row.tensors, row.line, row.shape, row.lives_to) == (2, "", "", None)
    assert row.lives_from < 0


def test_a_free_of_what_nobody_saw_before_the_peak():
    found = account(a(1, 64, 130), foreign=[(120, 9, 40), (140, 8, 2)])
    assert (found.by_category(), found.curve[0]) == ({"temporaries": 64, "other": 2}, (0, 42))


def test_foreign_frees_outside_of_the_step_do_not_count():
    assert account(foreign=[(99, 9, 40), (200, 8, 2)]).peak_bytes == 0


def test_the_same_address_freed_twice_though_nobody_saw_it_allocated():
    """Another thread allocates without a profiler, and this one frees."""
    found = account(a(1, 8, 110, 115), foreign=[(120, 9, 40), (130, 9, 40)])
    assert sum(row.bytes for row in found.rows) == found.peak_bytes
    assert min(size for _, size in found.curve) >= 0


def test_a_held_address_freed_twice_though_nobody_saw_it_allocated():
    found = account(a(1, 8, 110, 115), a(2, 500, 140), storages={9: held(40)}, foreign=[(120, 9, 40), (130, 9, 40)])
    assert sum(row.bytes for row in found.rows) == found.peak_bytes
    assert min(size for _, size in found.curve) >= 0


def test_an_address_that_was_seen_and_freed_by_others_after():
    """A held storage is freed, another thread allocates there, and this one frees that."""
    found = account(a(9, 40, 20, 110), storages={9: held(40)}, foreign=[(130, 9, 16)])
    assert sum(row.bytes for row in found.rows) == found.peak_bytes


def test_bytes_from_before_the_recording():
    found = account(a(1, 8, 110), before=1000)
    assert found.by_category() == {"temporaries": 8, "other": 1000}
    assert found.curve[0] == (0, 1000)


def test_bytes_from_before_and_foreign_frees_are_one_row():
    found = account(before=1000, foreign=[(120, 9, 24)])
    assert (only(found).tensors, only(found).bytes, only(found).category) == (2, 1024, "other")


def test_a_note_of_what_no_object_reaches():
    found = account(a(1, 8, 20), a(2, 4, 30), a(3, 2, 120), storages={1: held(8)})
    assert found.notes == ("4 bytes are still allocated between steps, although no Python object refers to them",)


# Devices


def test_each_device_has_its_own():
    allocations = (
        a(1, 8, 110),
        a(1, 1000, 120, None, "saved", device="cuda:0", reserved=4096),
        a(2, 3, 130, None, device="cuda:0", reserved=8192),
        a(3, 16, 20, None, device="cuda:0", reserved=2048),
        a(4, 10**6, 140, None, device="cuda:1"),
    )
    storages = {3: held(16, "parameters", "Net.w", device="cuda:0"), 7: held(32, device="cpu")}
    host = account(*allocations, storages=storages)
    assert (host.device, host.by_category(), host.reserved_bytes) == ("cpu", {"temporaries": 8, "inputs": 32}, None)
    device = account(*allocations, storages=storages, device="cuda:0")
    assert device.by_category() == {"parameters": 16, "activations": 1000, "temporaries": 3}
    assert (device.device, device.reserved_bytes, device.at_ns) == ("cuda:0", 8192, 30)
    assert (host.step_ends, device.step_ends) == ((8,), (1019,))


def test_what_a_device_holds_is_not_known_where_the_step_reaches_no_peak():
    assert account(a(3, 16, 20, device="cuda:0", reserved=2048), device="cuda:0").reserved_bytes is None


def test_what_accumulates_on_one_device():
    steps = [(index * 10, index * 10 + 9) for index in range(1, GROWING_STEPS + 1)]
    allocations = [a(begin, 4, begin + 1, device="cuda:0") for begin, _ in steps]
    found = recorded(allocations, steps)
    assert growing(found, "cpu") == ()
    assert [row.bytes for row in growing(found, "cuda:0")] == [4]


# Rows


def test_what_is_alike_is_one_row():
    alike = {"place": 2, "module": "Net.0", "operator": "aten::mm", "phase": "forward", "dtype": "float32"}
    found = account(
        a(1, 8, 110, 150, shape=(2,), **alike),
        a(2, 8, 120, 140, shape=(2,), **alike),
        a(3, 8, 130, 160, shape=(1, 2), **alike),
        storages={},
    )
    assert [(row.tensors, row.bytes, row.shape) for row in found.rows] == [(2, 16, "[2]"), (1, 8, "[1, 2]")]
    first = found.rows[0]
    assert (first.lives_from, first.lives_to) == (10, 50), "from the first one's begin to the last one's end"
    assert (first.line, first.callers) == ("model.py(2): f2", ("model.py(1): f1",))
    assert (first.module, first.operator, first.phase, first.dtype) == ("Net.0", "aten::mm", "forward", "float32")


def test_a_row_lives_to_the_end_where_one_of_it_does():
    found = account(a(1, 8, 110, 150), a(2, 8, 120))
    assert (only(found).tensors, only(found).lives_to) == (2, None)


@pytest.mark.parametrize(
    "other",
    [
        {"place": 2},
        {"module": "Net.1"},
        {"operator": "aten::add"},
        {"phase": "backward"},
        {"dtype": "float16"},
        {"shape": (4, 2)},
        {"saved": True},
    ],
    ids=str,
)
def test_what_differs_in_one_thing_is_another_row(other):
    alike = {"place": 1, "module": "Net.0", "operator": "aten::mm", "phase": "forward", "dtype": "int8", "shape": (8,)}
    found = account(a(1, 8, 110, **alike), a(2, 8, 111, **(alike | other)))
    assert [row.tensors for row in found.rows] == [1, 1]


def test_a_kept_tensor_is_another_row():
    found = account(a(1, 8, 20), a(2, 8, 120), steps=((10, 50), STEP))
    assert {row.kept: row.tensors for row in found.rows} == {True: 1, False: 1}


def test_a_module_s_own_tensors_have_its_name_and_shape():
    """The owner's module, type and shape count, and of a parameter that is a view of a larger storage, no shape."""
    found = account(
        a(1, 8, 5, module="Elsewhere", dtype="uint8", shape=(8,)),
        a(2, 64, 6, module="Elsewhere", dtype="uint8", shape=(64,)),
        storages={1: held(8, "parameters", "Net.fc.bias"), 2: held(8, "gradients", "Net.fc.bias")},
    )
    assert [(row.module, row.shape, row.dtype, row.parameters) for row in found.rows] == [
        ("Net.fc", "[64]", "uint8", ("Net.fc.bias",)),
        ("Net.fc", "[2]", "float32", ("Net.fc.bias",)),
    ]


def test_a_gradient_of_the_step_has_its_parameter_s_name():
    found = account(a(1, 8, 110, None, "gradient", parameter="Net.w"), a(2, 8, 111, None, "gradient", parameter=""))
    assert (only(found).parameters, only(found).tensors) == (("Net.w",), 2)


def test_a_gradient_is_of_the_line_that_called_the_backward_pass():
    """Of the forward operator is the nearest of the lines that led there; other tensors of a node are of that alone."""
    known = {"place": 2, "called": 4, "phase": "backward"}
    found = account(a(1, 8, 110, None, "gradient", "by_node", **known), a(2, 4, 120, None, "by_node", **known))
    gradient, temporary = found.rows
    assert (gradient.line, gradient.callers) == (lines(4)[0], (*lines(2), *lines(4)[1:]))
    assert (temporary.line, temporary.callers) == (lines(2)[0], lines(2)[1:])


def test_gradients_of_one_backward_pass_are_alike_whatever_the_forward_line():
    known = {"called": 4, "phase": "backward"}
    found = account(*(a(each, 8, 110 + each, None, "gradient", place=each, **known) for each in (1, 2)))
    assert (only(found).tensors, only(found).line) == (2, lines(4)[0])


def test_a_held_gradient_is_of_the_line_that_called_the_backward_pass():
    found = account(
        a(1, 8, 20, place=2, called=4), steps=((10, 50), STEP), storages={1: held(8, "gradients", "Net.fc.weight")}
    )
    assert (only(found).line, only(found).module) == (lines(4)[0], "Net.fc")


@pytest.mark.parametrize(
    "others, module",
    [
        (["Net.fc"], "Net.fc"),
        (["Net.fc", "Net.fc"], "Net.fc"),
        (["Net.fc", "Net.out"], ""),
        ([""], ""),
    ],
)
def test_a_step_whose_modules_are_not_known_has_those_of_the_same_place(others, module):
    """The first one runs without hooks."""
    known = {"place": 2, "operator": "aten::mm", "phase": "forward"}
    later = (a(9 + index, 4, 60 + index, 70, module=other, **known) for index, other in enumerate(others))
    found = account(a(1, 8, 20, **known), *later, steps=((10, 50), (55, 80), STEP))
    assert only(found).module == module


@pytest.mark.parametrize("other", [{"place": 1}, {"operator": "aten::add"}])
def test_another_place_s_module_is_not_its_own(other):
    known = {"place": 2, "operator": "aten::mm", "phase": "forward"}
    found = account(
        a(1, 8, 20, **known), a(2, 4, 60, 70, module="Net", **(known | other)), steps=((10, 50), (55, 80), STEP)
    )
    assert only(found).module == ""


def test_names_and_callers_are_a_few():
    count = MOST_NAMES + 3
    found = account(
        *(a(index, 4, index, place=MOST_CALLERS + 5) for index in range(1, count + 1)),
        storages={index: held(4, "parameters", f"Net.w{index}") for index in range(1, count + 1)},
    )
    row = only(found)
    assert (row.tensors, row.parameters) == (count, tuple(f"Net.w{index}" for index in range(1, MOST_NAMES + 1)))
    assert row.callers == lines(MOST_CALLERS + 4)[:MOST_CALLERS]


def test_what_was_set_up_has_that_phase():
    found = account(a(1, 8, 5), a(2, 4, 6, phase="backward"), a(3, 2, 120, phase="forward"))
    assert {row.bytes: row.phase for row in found.rows} == {8: "setup", 4: "backward", 2: "forward"}


# The moment, what passed, and the curve


def test_the_moment_is_what_reached_the_peak():
    found = account(
        a(1, 8, 110, place=1), a(2, 4, 120, None, place=2, module="Net", operator="aten::mm", phase="backward")
    )
    assert found.moment is not None
    assert found.moment in found.rows
    assert (found.moment.line, found.moment.operator, found.moment.bytes) == ("model.py(2): f2", "aten::mm", 4)


def test_what_passed_is_what_the_step_allocated_that_is_not_at_the_peak():
    found = account(
        a(1, 1, 20, 105),
        a(2, 2, 110, 115),
        a(3, 64, 120, 130),
        a(4, 4, 140, place=1),
        a(5, 8, 199, place=2),
        a(6, 16, 200),
    )
    assert [row.bytes for row in found.rows] == [64]
    assert sorted(row.bytes for row in found.passed) == [2, 4, 8]


def test_of_what_passed_the_largest_rows_are_kept():
    many = [a(index, index, 110 + 2 * index, 111 + 2 * index, place=index) for index in range(1, MOST_PASSED + 20)]
    found = account(*many, a(10**6, 10**6, 101, 102), steps=((100, 10_000),))
    assert [row.bytes for row in found.passed] == list(range(MOST_PASSED + 19, 19, -1))


@pytest.mark.parametrize("count", [1, 199, 200, 201, 400, 1234, 5000])
@pytest.mark.parametrize("peak_at", [0, 0.37, 1])
def test_the_curve_is_thinned_out_but_for_the_peak(count, peak_at):
    random_sizes = random.Random(count)
    there = [a(index, random_sizes.randint(1, 99), 2 * index + 2, 2 * index + 3) for index in range(count)]
    there[round(peak_at * (count - 1))].bytes = 100
    found = account(*there, steps=((1, 2 * count + 10),))
    assert found.peak_bytes == 100
    assert found.at_ns == 2 * round(peak_at * (count - 1)) + 1
    assert found.curve[-1] == (2 * count, 0), "the end"
    assert len(found.curve) > min(2 * count, CURVE_POINTS) // 2


# What the ends of steps have, and what grows


def test_the_ends_of_steps():
    """What is freed between two steps, garbage, is not alive at the end of the first; nor is what comes after it."""
    found = recorded(
        [
            a(1, 1, 5),
            a(2, 2, 15, 18),
            a(3, 4, 16, 25),
            a(4, 8, 17, 31),
            a(5, 16, 22),
            a(6, 32, 35, 45),
            a(7, 64, 20),
        ],
        steps=((10, 20), (30, 40)),
    )
    # At the end of the first: 1, and 8, which the second frees. 4 is freed between them; 16 and 64 come after it.
    # At the end of the last: 32 is freed once it has ended.
    assert step_ends(found) == (9, 1 + 16 + 64)


def test_freed_when_the_next_step_begins_is_not_alive_at_the_end_of_the_one_before():
    assert step_ends(recorded([a(1, 1, 15, 30), a(2, 2, 16, 31)], steps=((10, 20), (30, 40)))) == (2, 0)


def test_the_ends_do_not_count_what_nobody_saw():
    found = account(a(1, 8, 110), storages={9: held(40)}, before=1000)
    assert found.step_ends == (8,)


STEPS = [(100 * index, 100 * index + 50) for index in range(1, GROWING_STEPS + 2)]
"""One more than those that are looked at."""


def kept(place, steps=range(GROWING_STEPS + 1), size=4, end=None, **known):
    """One allocation in each of these steps, which lives as long as `end` says of the step's number."""
    return [
        a(1000 * place + step, size, STEPS[step][0] + place, end and end(step), place=place, **known) for step in steps
    ]


def test_what_grows():
    found = recorded([*kept(1, size=4), *kept(2, size=16, module="Net")], STEPS)
    rows = growing(found)
    assert [(row.line, row.tensors, row.bytes, row.module) for row in rows] == [
        ("model.py(2): f2", 1, 16, "Net"),
        ("model.py(1): f1", 1, 4, ""),
    ]


@pytest.mark.parametrize("missing", range(1, GROWING_STEPS + 1))
def test_what_grows_in_all_of_the_last_steps_but_one_does_not(missing):
    steps = [step for step in range(len(STEPS)) if step != missing]
    assert growing(recorded(kept(1, steps), STEPS)) == ()


def test_it_need_not_grow_in_the_steps_before():
    assert len(growing(recorded(kept(1, range(1, len(STEPS))), STEPS))) == 1


def test_what_the_last_step_alone_keeps_does_not_grow():
    """Each step frees what the one before kept."""
    last = len(STEPS) - 1
    found = recorded(kept(1, end=lambda step: None if step == last else STEPS[step + 1][0] + 20), STEPS)
    assert growing(found) == ()


def test_what_the_last_two_steps_keep_does_not_grow():
    """Each step frees what the one before the last kept."""
    found = recorded(kept(1, end=lambda step: None if step + 2 >= len(STEPS) else STEPS[step + 2][0] + 20), STEPS)
    assert growing(found) == ()


def test_garbage_does_not_grow():
    """It is freed once the step is over."""
    assert growing(recorded(kept(1, end=lambda step: STEPS[step][1] + 10), STEPS)) == ()


@pytest.mark.parametrize("other", ["place", "module", "operator", "phase"])
def test_another_line_in_each_step_does_not_grow(other):
    value = {"place": lambda step: step + 1, "phase": lambda step: ("forward", "backward")[step % 2]}
    known = [{other: value.get(other, lambda step: f"{step}")(step)} for step in range(len(STEPS))]
    found = recorded([a(step, 4, STEPS[step][0] + 1, **known[step]) for step in range(len(STEPS))], STEPS)
    assert growing(found) == ()


def test_shapes_may_grow():
    """A cache that is replaced by a longer one does not grow by its own size, but a longer piece in each step does."""
    found = recorded(
        [a(step, 4 * step + 4, STEPS[step][0] + 1, shape=(step + 1,), dtype="float32") for step in range(len(STEPS))],
        STEPS,
    )
    assert [row.shape for row in growing(found)] == [f"[{len(STEPS)}]"]


def test_too_few_steps_say_nothing():
    found = recorded(kept(1, range(GROWING_STEPS - 1)), STEPS[: GROWING_STEPS - 1])
    assert growing(found) == ()


def test_what_grows_is_looked_for_where_it_is_asked_for():
    rows = kept(1)
    assert account(*rows, steps=STEPS).growing == ()
    assert len(account(*rows, steps=STEPS, growth=True).growing) == 1


def test_what_grows_between_steps_is_of_none():
    assert growing(recorded([a(step, 4, STEPS[step][1] + 5) for step in range(len(STEPS))], STEPS)) == ()


# An allocation that operators read


@pytest.mark.parametrize(
    "seen, expected",
    [
        ([], ("", None)),
        ([("float32", (4,))], ("float32", (4,))),
        ([("float32", (2,)), ("float32", (4,))], ("float32", (4,))),
        ([("float32", (2,)), ("float32", (3,))], ("float32", (2,))),
        ([("float32", (4,)), ("float32", (2, 2))], ("float32", (4,))),
        ([("float32", (2,)), ("float64", (2,)), ("float32", (4,))], ("float64", (2,))),
        ([("unknown", (16,)), ("int8", (16,))], ("int8", (16,))),
        ([("float32", ()), ("bfloat16", (8,))], ("bfloat16", (8,))),
    ],
)
def test_the_first_operand_that_fills_it_says_its_shape(seen, expected):
    allocation = a(1, 16, 5)
    for dtype, shape in seen:
        allocation.see(dtype, shape, by_node=False)
    assert (allocation.dtype, allocation.shape) == expected
    assert not allocation.read_by_node


def test_once_a_node_has_read_it_it_was_read():
    allocation = a(1, 16, 5)
    allocation.see("float32", (4,), by_node=False)
    allocation.see("float32", (4,), by_node=True)
    allocation.see("float32", (4,), by_node=False)
    assert allocation.read_by_node


# Against a replay


def life(seed, moments=400):
    """A run of an allocator: what was seen, what frees were foreign, the steps, and what Python held at the last one.

    Beside it, what is alive, by the number of each storage: what the replay goes through.
    """
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(moments // 4, moments), 6))
    steps = list(zip(cuts[::2], cuts[1::2], strict=True))
    borders = {time for step in steps for time in step}
    live, events, seen, foreign, storages = {}, [], [], [], {}
    free = list(range(1, 60))
    for time in range(moments):
        if time == steps[-1][0]:
            for address, (kind, _, number, size) in live.items():
                if rng.random() < 0.6 or kind == "held":
                    role = rng.choice((None, *CATEGORIES[:3]))
                    there = size if kind == "seen" else rng.choice((size, size + 4))
                    storages[address] = held(there, role, f"Net.{number}" if role else "")
        if time in borders:
            continue
        if free and (rng.random() < 0.55 or not live):
            address = free.pop(rng.randrange(min(3, len(free))))
            before = time < steps[-1][0]
            kind = rng.choices(("seen", "held", "lost"), (8, 1 if before else 0, 1 if before else 0))[0]
            size = 4 * rng.randint(1, 50)
            each = None
            if kind == "seen":
                flags = [flag for flag in ("saved", "gradient", "by_node", "read_by_node") if rng.random() < 0.2]
                phase = rng.choice(("", "input", "forward", "backward"))
                each = a(address, size, time, None, *flags, phase=phase, place=rng.randint(0, 3))
                seen.append(each)
            live[address] = (kind, each, len(events), size)
            events.append([time, None, address, size, kind, each])
        else:
            address = rng.choice(list(live))
            kind, each, number, size = live.pop(address)
            free.insert(0, address)
            events[number][1] = time
            if each is not None:
                each.end = time
            else:
                foreign.append((time, address, size))
    return seen, foreign, steps, storages, events


def replayed(seen, foreign, steps, storages, events):
    """The first highest point of the last step, and bytes by category there: every moment is added up anew."""
    begin, end = steps[-1]

    def role(time, each, address):
        owner = storages.get(address) if time < begin else None
        if owner is not None and owner.category:
            return owner.category
        if each is None:
            return "inputs" if owner is not None else "other"
        if time < steps[0][0] or each.phase == "input":
            return "inputs"
        if each.gradient:
            return "gradients"
        return "activations" if each.saved or (each.read_by_node and not each.by_node) else "temporaries"

    def known(made, freed, address, kind):
        """Whether anybody could know of it: lost ones only by their free within the step."""
        return kind == "seen" or address in storages or (freed is not None and begin <= freed < end)

    best, moment, found = -1, 0, Counter()
    for now in range(begin, end):
        roles = Counter()
        for made, freed, address, size, kind, each in events:
            alive = made <= now and (freed is None or freed > now)
            relevant = freed is None or freed >= begin
            if alive and relevant and known(made, freed, address, kind):
                there = size if each is not None or address not in storages else storages[address].bytes
                roles[role(made, each, address)] += there
        if sum(roles.values()) > best:
            best, moment, found = sum(roles.values()), now - begin, roles
    return best, moment, dict(found)


@pytest.mark.parametrize("seed", range(60))
def test_as_a_replay_of_all_events(seed):
    seen, foreign, steps, storages, events = life(seed)
    found = account(*seen, steps=steps, foreign=foreign, storages=storages)
    peak, moment, roles = replayed(seen, foreign, steps, storages, events)
    assert found.peak_bytes == peak
    assert found.at_ns == moment
    assert found.by_category() == roles
    ends = []
    for index, (_, end) in enumerate(steps):
        after = steps[index + 1][0] if index + 1 < len(steps) else None
        alive = [each for each in seen if each.begin < end]
        ends.append(
            sum(each.bytes for each in alive if each.end is None or (after is not None and not each.end <= after))
        )
    assert found.step_ends == tuple(ends)


def test_the_replays_have_what_is_to_be_tested():
    """Each of the ways in which bytes come to be at a peak is in some of them, and so is a peak at the beginning."""
    roles, moments = Counter(), set()
    for seed in range(60):
        _, moment, found = replayed(*life(seed))
        roles.update(found.keys())
        moments.add(moment == 0)
    assert roles.keys() == set(CATEGORIES) - {"allocator"}
    assert moments == {True, False}
