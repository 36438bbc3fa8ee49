"""What holds for every matching: nothing is dropped, sides may be exchanged, a side is itself."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.diff.matching.match import match
from pytest_perfdl.diff.matching.stages import Weighted, cheapest_in_order
from pytest_perfdl.model.step_part import Part
from unit.diff.matching.matching_parts import kernel, operator

NAMES = [
    "ampere_sgemm_128x64_tn",
    "ampere_sgemm_32x32_sliced1x4_tn",
    "volta_sgemm_64x64_nn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, std::array<char*, 3ul> >(int)",
    "void at::native::vectorized_elementwise_kernel<2, at::native::AddFunctor<float>, std::array<char*, 3ul> >(int)",
    "void splitKreduce_kernel<float, float>(cublasSplitKParams<float>)",
    "triton_poi_fused_add_relu_0",
    "triton_poi_fused_add_1",
    "triton_red_fused_add_mul_native_layer_norm_2",
    "Torch-Compiled Region: 0/0",
    "CompiledFxGraph f7a2c",
    "aten::add",
    "aten::relu",
]
PATHS = [
    (),
    ("aten::add",),
    ("aten::relu_",),
    ("aten::linear", "aten::addmm"),
    ("aten::linear", "aten::matmul", "aten::mm"),
    ("aten::layer_norm", "aten::native_layer_norm"),
    ("Torch-Compiled Region: 0/0", "CompiledFxGraph f7a2c"),
]
parts = st.builds(
    Part,
    kind=st.sampled_from(["kernel", "operator", "idle"]),
    name=st.sampled_from(NAMES),
    path=st.sampled_from(PATHS),
    shapes=st.sampled_from(["", "[[4]]", "[[8]]"]),
    module=st.sampled_from(["", "Net_0.Block_0", "Net_0.Block_1", "DDP_0.Net_0.Block_1"]),
    line=st.sampled_from(["", "train.py(12): step", "train.py(14): step"]),
    function=st.sampled_from(["", "a.py(1): alpha"]),
    phase=st.sampled_from(["", "forward", "backward"]),
)
sides = st.lists(
    st.builds(Weighted, part=parts, count=st.sampled_from([1.0, 2.0, 0.5]), ns=st.sampled_from([0.0, 10.0, 1000.0])),
    max_size=14,
)


@pytest.mark.long
@given(sides, sides)
@settings(max_examples=150, deadline=None)
def test_every_part_is_in_one_group_and_kinds_do_not_mix(base, new):
    matching = match(base, new)
    assert sorted(place for group in matching for place in group.base) == [*range(len(base))]
    assert sorted(place for group in matching for place in group.new) == [*range(len(new))]
    for group in matching:
        kinds = {base[place].part.kind for place in group.base} | {new[place].part.kind for place in group.new}
        phases = {base[place].part.phase for place in group.base} | {new[place].part.phase for place in group.new}
        assert len(kinds) == 1
        assert len(phases - {""}) <= 1
        assert (group.by == "gone") == (not group.new)
        assert (group.by == "added") == (not group.base)
        assert 0 < group.confidence <= 1


@pytest.mark.long
@given(sides, sides)
@settings(max_examples=150, deadline=None)
def test_exchanging_the_sides_exchanges_the_groups(base, new):
    assert match(new, base) == tuple(group.exchanged() for group in match(base, new))


@given(sides)
@settings(max_examples=50, deadline=None)
def test_a_side_is_itself(side):
    groups = match(side, side)
    assert {(group.by, group.confidence) for group in groups} <= {("exact", 1.0)}
    assert [(group.base, group.new) for group in groups if group.base != group.new] == []


@given(sides, sides)
@settings(max_examples=50, deadline=None)
def test_equal_parts_are_matched_exactly(base, new):
    exact = sum(group.by == "exact" and group.confidence == 1 for group in match(base, new))
    left = [part.part for part in new]
    common = 0
    for each in base:
        if each.part in left:
            left.remove(each.part)
            common += 1
    assert exact == common


def slowly(cost, limit, rows, columns):
    """The least cost of all ordered pairings, by trying them all."""
    if not rows or not columns:
        return (len(rows) + len(columns)) * limit / 2
    return min(
        slowly(cost, limit, rows[1:], columns) + limit / 2,
        slowly(cost, limit, rows, columns[1:]) + limit / 2,
        slowly(cost, limit, rows[1:], columns[1:]) + cost[rows[0]][columns[0]],
    )


def test_no_other_pairs_in_order_are_cheaper():
    numpy = pytest.importorskip("numpy")
    rng = random.Random(1)
    for _ in range(60):
        rows, columns = rng.randint(1, 5), rng.randint(1, 5)
        cost = numpy.array([[rng.randint(0, 1000) for _ in range(columns)] for _ in range(rows)], dtype=numpy.int32)
        pairs = cheapest_in_order(cost, 0.8)
        assert pairs == sorted(pairs)
        assert all(first < second for first, second in itertools.pairwise(pairs))
        assert all(cost[pair] < 800 for pair in pairs)
        total = sum(int(cost[pair]) for pair in pairs) + (rows + columns - 2 * len(pairs)) * 400
        assert total == slowly(cost.tolist(), 800, tuple(range(rows)), tuple(range(columns)))


@pytest.mark.long
def test_a_model_under_another_wrapper_with_other_tiles():
    """Ten thousand parts, of which none is equal, are all matched, and by name."""
    rng = random.Random(2)
    base, new = [], []
    for block in range(500):
        for place in range(10):
            shapes, module = [[64, place + 1]], f"Net_0.Block_{block}"
            around = ("aten::linear", "aten::addmm") if place % 2 else ("aten::add",)
            make, name = (kernel, "ampere_sgemm_{}_tn") if place % 2 else (operator, "aten::add")
            ns = rng.randint(1000, 5000)
            base.append(make(name.format("128x64"), *around, shapes=shapes, module=module, ns=ns))
            new.append(make(name.format("64x64"), *around, shapes=shapes, module=f"DDP_0.{module}", ns=ns * 1.1))
    matching = match(base, new)
    assert all(group.base == group.new and group.by == "name" for group in matching)


def test_thousands_of_parts_that_no_name_joins_are_aligned_by_what_takes_time():
    base = [kernel(f"alpha_{chr(97 + i % 26)}x", module="A_0", ns=1.0 + (i < 5) * 1e6) for i in range(3000)]
    new = [kernel(f"beta_{chr(97 + i % 26)}x", module="A_0", ns=1.0 + (i < 5) * 1e6) for i in range(3000)]
    matching = match(base, new)
    assert sum(len(group.base) for group in matching) == 3000
    assert sum(len(group.new) for group in matching) == 3000
    assert {group.by for group in matching[:5]} == {"aligned"}
