"""What was added to a curve: its kind, its amount, its power, by hand and with seeded noise."""

import numpy as np
import pytest

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.growth import fit_growth, shape

SIZES = np.array([2.0, 4.0, 8.0, 16.0])
BASES = {
    "a small fixed part": lambda x: 1e6 + 1e6 * x,
    "half of it fixed": lambda x: 16e6 + 1e6 * x,
    "nearly flat": lambda x: 30e6 + 0.2e6 * x,
}
ADDED = {
    "overhead": lambda x: 0 * x + 1,
    "per unit": lambda x: x / 16,
    "complexity": lambda x: (x / 16) ** 2,
}


def found(base, added, *, sizes=SIZES, seed=None, sd=0.02, repeats=(5, 5), occasion=0.02, common=0.03):
    """The growth from repeats on one occasion to repeats on another; exact without a seed."""
    random = np.random.default_rng(seed)
    noise = 0.0 if seed is None else 1.0
    before, after = base(sizes), base(sizes) + added(sizes)
    logs = [
        np.log(times) + noise * sd * random.standard_normal((count, len(sizes))).mean(axis=0)
        for times, count in zip((before, after), repeats, strict=True)
    ]
    ratios = logs[1] - logs[0] + noise * occasion * random.standard_normal()
    errors = np.full(len(sizes), sd * sum(1 / count for count in repeats) ** 0.5)
    freedom = (repeats[0] - 1) * len(sizes)
    return fit_growth(sizes, np.exp(logs[0]), ratios, errors, freedom, np.full(len(sizes), common))


def in_pairs(base, added, **rest):
    """The growth where both sides met the same machine."""
    return found(base, added, occasion=0.0, common=0.0, **rest)


@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("name", BASES)
def test_a_term_by_hand(name, kind):
    base = BASES[name]
    growth = found(base, lambda x: 2e6 * ADDED[kind](x))
    power = {"overhead": 0, "per unit": 1, "complexity": 2}[kind]
    assert (growth.kind, growth.term) == (kind, power)
    assert growth.amount.value == pytest.approx(2e6 / 16**power)
    assert growth.amount.low < growth.amount.value < growth.amount.high
    shares = ADDED[kind](SIZES) / base(SIZES)
    assert growth.size == SIZES[np.argmax(shares)]
    assert growth.effect.value == pytest.approx(2e6 * shares.max())
    assert growth.power.value == pytest.approx(power, abs=0.021)
    assert growth.power.low <= power <= growth.power.high


def test_a_share_of_every_size_is_no_term():
    growth = found(BASES["half of it fixed"], lambda x: 0.3 * (16e6 + 1e6 * x))
    assert (growth.kind, growth.term) == ("every size alike", None)
    assert growth.amount.value == pytest.approx(0.3)
    assert growth.effect.value == pytest.approx(0.3)


@pytest.mark.parametrize(("fixed", "kind"), [(12e6, "per unit"), (20e6, "overhead")])
def test_a_share_of_every_size_in_pairs_is_more_of_all_that_a_curve_is_made_of(fixed, kind):
    growth = in_pairs(lambda x: fixed + 1e6 * x, lambda x: 0.3 * (fixed + 1e6 * x))
    parts = {"overhead": 0.3 * fixed, "per unit": 0.3e6}
    assert growth.kind == kind
    assert growth.amount.value == pytest.approx(parts.pop(kind))
    assert growth.beside.term == {"overhead": 0, "per unit": 1}[next(iter(parts))]
    assert growth.beside.amount.value == pytest.approx(*parts.values())
    assert growth.effect.value == pytest.approx(0.3)


def test_a_share_of_a_curve_that_is_no_line_stays_one_in_pairs():
    growth = in_pairs(lambda x: np.where(x < 8, 20e6, 1e6 * x), lambda x: 0.3 * np.where(x < 8, 20e6, 1e6 * x))
    assert (growth.kind, growth.term, growth.beside) == ("every size alike", None, None)
    assert growth.effect.value == pytest.approx(0.3)


@pytest.mark.parametrize(("power", "kind"), [(1, "per unit"), (2, "complexity")])
@pytest.mark.parametrize(("fixed", "scaled"), [(6e6, 8e6), (8e6, 6e6)])
def test_two_terms_by_hand(fixed, scaled, power, kind):
    base = BASES["half of it fixed"]
    growth = in_pairs(base, lambda x: fixed + scaled * (x / 16) ** power, sd=0.01)
    told = {0: fixed, power: scaled / 16**power}
    named = 0 if fixed > scaled else power
    assert (growth.kind, growth.term) == ("overhead" if named == 0 else kind, named)
    assert growth.amount.value == pytest.approx(told.pop(named))
    assert (growth.beside.term, growth.beside.amount.value) == pytest.approx(*told.items())
    assert growth.beside.amount.low < growth.beside.amount.value < growth.beside.amount.high
    shares = (fixed + scaled * (SIZES / 16) ** power) / base(SIZES)
    assert growth.size == SIZES[np.argmax(shares)]
    assert growth.effect.value == pytest.approx(shares.max())


def test_what_is_taken_at_one_size_and_added_at_another_is_one_term():
    growth = in_pairs(BASES["half of it fixed"], lambda x: 8e6 * x / 16 - 2e6)
    assert growth.beside is None
    assert growth.kind in ("per unit", "complexity")


def test_a_lost_batching_that_costs_a_little_at_every_size_is_per_unit():
    # As measured of a loop over samples: a call for each, and one that puts the results together.
    growths = [in_pairs(lambda x: 190e3 + 6.5e3 * 2 * x, lambda x: 10e3 + 2e3 * 2 * x, seed=seed) for seed in range(40)]
    assert sum(growth.kind == "per unit" and growth.effect.low > 0 for growth in growths) >= 36


@pytest.mark.parametrize("kind", ["per unit", "complexity"])
def test_a_power_that_the_base_has_is_none_of_complexity(kind):
    sizes = np.array([64.0, 128, 256, 512, 1024, 2048])
    power = {"per unit": 2, "complexity": 3}[kind]
    growth = found(lambda x: 5e6 + 10 * x**2, lambda x: 1e7 * (x / 2048) ** power, sizes=sizes)
    assert (growth.kind, growth.term) == (kind, power)


def test_how_sure_ratios_are_does_not_bend_the_base():
    """As measured: a base that is nearly a line, and a square whose rounds at two sizes were quieter."""
    sizes = np.array([4.0, 8.0, 16.0, 32.0])
    base = np.array([242.4e3, 292.8e3, 412.3e3, 651.2e3])
    for quiet in range(4):
        errors = np.full(4, 0.02)
        errors[[quiet, quiet - 1]] = 0.001
        growth = fit_growth(sizes, base, np.log1p(170 * sizes**2 / base), errors, 36, np.zeros(4))
        assert (growth.kind, growth.term) == ("complexity", 2)


def test_what_was_taken_away_is_negative():
    growth = found(BASES["half of it fixed"], lambda x: -4e6 + 0 * x)
    assert growth.kind == "overhead"
    assert growth.effect.high < -0.1


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("kind", ADDED)
def test_a_fifth_at_the_largest_size_is_named_in_nine_of_ten_trials(kind, name):
    base = BASES[name]
    growths = [found(base, lambda x: 0.2 * base(16) * ADDED[kind](x), seed=seed) for seed in range(40)]
    assert sum(growth.kind == kind and growth.effect.low > 0 for growth in growths) >= 36


@pytest.mark.parametrize("name", BASES)
def test_intervals_hold_what_was_added(name):
    base = BASES[name]
    growths = [found(base, lambda x: 0.2 * base(16) * ADDED["overhead"](x), seed=seed) for seed in range(40)]
    assert sum(growth.amount.low <= 0.2 * base(16) <= growth.amount.high for growth in growths) >= 36


@pytest.mark.parametrize("name", BASES)
def test_nothing_is_found_in_unchanged_code(name):
    growths = [found(BASES[name], lambda x: 0 * x, seed=seed, repeats=(5, 1)) for seed in range(40)]
    assert not any(growth.effect.low > 0.1 for growth in growths)


def test_the_shape_of_a_line_by_hand():
    ns = 12e6 + 1e6 * SIZES
    curve = shape(SIZES, ns, np.full(4, 0.01), 12)
    assert (curve.fixed.value, curve.slope.value) == pytest.approx((12e6, 1e6))
    assert curve.fixed.low < 12e6 < curve.fixed.high
    logs = np.log(ns[1:])
    assert curve.exponent.value == pytest.approx((logs[2] - logs[0]) / np.log(4))


def test_the_exponent_of_a_square():
    assert shape(SIZES, 1e5 * SIZES**2, np.full(4, 0.01), 12).exponent.value == pytest.approx(2)


@pytest.mark.parametrize(
    "sizes",
    [np.array([2.0, 4.0]), np.array([2.0, 4.0, 4.0]), np.array([2.0, 4.0, 8.0, 8.0])],
    ids=["two", "same", "four"],
)
def test_few_sizes_are_no_curve(sizes):
    with pytest.raises(ScalingError, match=r"different sizes: a curve needs 3 or more"):
        shape(sizes, sizes, np.full(len(sizes), 0.01), 8)
    with pytest.raises(ScalingError, match=r"different sizes: a curve needs 3 or more"):
        fit_growth(sizes, sizes, 0 * sizes, np.full(len(sizes), 0.01), 8)
