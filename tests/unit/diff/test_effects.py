"""Why a part changed: the effects of a change add up to it, and each says what it is called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_perfdl.diff.account import NOTHING, Amount, Effects, effects, sum_effects

times = st.floats(0, 1e9)


@st.composite
def amounts(draw):
    busy = draw(times)
    return Amount(draw(st.sampled_from([0, 1, 2, 2.5, 48])), busy, draw(st.floats(0, 1)) * busy)


def together(*pairs):
    """The effects of the parts of these pairs taken together."""
    base, new = (sum(side, NOTHING) for side in zip(*pairs, strict=True))
    return sum_effects(base, new, sum((effects(*pair) for pair in pairs), Effects()))


@pytest.mark.parametrize(
    "base, new, expected",
    [
        (Amount(2, 100, 100), Amount(4, 200, 200), Effects(count=100)),
        (Amount(2, 100, 100), Amount(2, 150, 150), Effects(duration=50)),
        (Amount(2, 100, 100), Amount(2, 100, 40), Effects(exposure=-60)),
        # Half of 100 ns hidden; two more of them, each twice as long, all of it exposed: 50 -> 400.
        (Amount(2, 100, 50), Amount(4, 400, 400), Effects(count=50, duration=100, exposure=200)),
        (NOTHING, Amount(3, 90, 60), Effects(count=60)),
        (Amount(3, 90, 60), NOTHING, Effects(count=-60)),
        (Amount(0, 0, 700), Amount(0, 0, 500), Effects(duration=-200)),
        (NOTHING, Amount(0, 0, 500), Effects(duration=500)),
    ],
    ids=["more", "longer", "hidden", "all at once", "new", "gone", "idle", "new idle time"],
)
def test_what_each_effect_is(base, new, expected):
    assert effects(base, new) == expected


def test_of_exchanged_members_what_is_not_exposure_is_mix():
    found = effects(Amount(2, 100, 50), Amount(1, 300, 300), exchanged=True)
    assert found == Effects(mix=100, exposure=150)


@given(amounts(), amounts(), st.booleans())
def test_effects_add_up_to_the_change(base, new, exchanged):
    found = effects(base, new, exchanged=exchanged)
    total = found.count + found.duration + found.mix + found.exposure
    assert total == pytest.approx(new.ns - base.ns, abs=1e-3)


def test_more_of_the_dear_ones_at_the_cost_of_the_cheap_ones_is_mix():
    """Ten calls of 10 ns and ten of 100 ns become five and fifteen: as many, but 450 ns more."""
    cheap = Amount(10, 100, 100), Amount(5, 50, 50)
    dear = Amount(10, 1000, 1000), Amount(15, 1500, 1500)
    assert together(cheap, dear) == Effects(mix=450)


def test_what_moves_from_one_shape_to_another_is_no_count():
    gone, came = (Amount(4, 400, 400), NOTHING), (NOTHING, Amount(4, 600, 600))
    assert together(gone, came) == Effects(mix=200)


@given(st.lists(st.tuples(amounts(), amounts()), min_size=1, max_size=5))
def test_sums_add_up_too(pairs):
    found = together(*pairs)
    total = found.count + found.duration + found.mix + found.exposure
    assert total == pytest.approx(sum(new.ns - base.ns for base, new in pairs), abs=1e-2)
