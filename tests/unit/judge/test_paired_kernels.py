"""Sign-flip max-T over kernels: by enumeration, and what it finds and leaves."""

import itertools
import math

import numpy as np
import pytest

from pytest_perfdl.judge import signflip
from pytest_perfdl.judge.rounds import Round, orders
from pytest_perfdl.judge.signflip import KernelTest


def rounds(count=30, *, slower=(), kernels=20, sd=0.03, seed=1, common=0.0):
    rng = np.random.default_rng(seed)
    found = []
    for order in orders(seed, count):
        moment = rng.normal(0, 0.2) + rng.normal(0, common, 2)
        times = np.exp(moment[:, None] + rng.normal(0, sd / math.sqrt(2), (2, kernels))) * 1000
        base, head = ({f"k{number}": float(time) for number, time in enumerate(side)} for side in times)
        for name, factor in dict(slower).items():
            head[name] *= factor
        found.append(Round(order, {"step_time": 1.0}, {"step_time": 2.0}, base, head))
    return found


NAMES = tuple(f"k{number}" for number in range(20))


def named(measured, alpha=0.005, kernels=NAMES, **rest):
    return [kernel.name for kernel in KernelTest(kernels, alpha, **rest).look(measured)]


def random_scores(rounds, kernels, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    return np.rint(rng.normal(shift, 1, (rounds, kernels)) * 64).astype(np.float32) / 64


def by_enumeration(scored):
    """Step-down max-T over all flips, with loops."""
    flipped = [np.array(signs) @ scored for signs in itertools.product((1, -1), repeat=len(scored))]
    observed = scored.sum(axis=0)
    order = sorted(range(len(observed)), key=lambda kernel: -observed[kernel])
    p, least = {}, 0.0
    for place, kernel in enumerate(order):
        rest = order[place:]
        share = sum(max(sums[other] for other in rest) >= observed[kernel] for sums in flipped) / len(flipped)
        p[kernel] = least = max(least, share)
    return [p[kernel] for kernel in range(len(observed))]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_all_flips_by_enumeration(seed, shift):
    scored = random_scores(7, 4, seed, shift)
    expected = by_enumeration(scored)
    assert signflip.step_down(scored, 0.999).tolist() == pytest.approx(expected) or min(expected) > 0.999
    assert signflip.least_p(scored[:, None], 0.999)[0] == pytest.approx(min(expected)) or min(expected) > 0.999


def test_one_kernel_by_hand():
    # Three rounds of scores 2, 1, -1: sums over all signs are +-4, +-2 (twice), 0 (twice); 2 or more in 3 of 8.
    scored = np.array([[2], [1], [-1]], np.float32)
    assert signflip.step_down(scored, 0.5).tolist() == [3 / 8]


def test_kernels_that_move_together_cost_one():
    column = random_scores(8, 1, 3, 1.0)
    alone = signflip.least_p(column[:, None], 0.9)[0]
    assert signflip.least_p(np.repeat(column, 50, axis=1)[:, None], 0.9)[0] == alone


def test_drawn_flips_come_near_all_of_them(monkeypatch):
    scored = np.stack([random_scores(12, 6, seed, 0.3) for seed in range(20)], axis=1)
    exact = signflip.least_p(scored, 0.999)
    monkeypatch.setattr(signflip, "flips", lambda rounds, level: (signflip.LEAST_FLIPS, False))
    drawn = signflip.least_p(scored, 0.999)
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(0.25 / signflip.LEAST_FLIPS))
    assert drawn.min() >= 1 / (signflip.LEAST_FLIPS + 1)
    assert (signflip.least_p(scored, 0.999) == drawn).all()


@pytest.mark.parametrize("rounds", [10, 20])
def test_stopping_to_count_changes_no_decision(rounds):
    scored = np.stack([random_scores(rounds, 5, seed, 0.45) for seed in range(200)], axis=1)
    level = 0.004
    full = signflip.least_p(scored, 0.9999)  # never stops
    short = signflip.least_p(scored, level)
    assert 5 < (full <= level).sum() < 195
    assert ((short <= level) == (full <= level)).all()


@pytest.mark.parametrize("rounds, level, number", [
    (10, 0.00125, (1024, True)),
    (13, 0.00125, (8192, True)),
    (14, 0.00125, (10_000, False)),
    (16, 0.0001, (65_536, True)),
    (30, 0.00001, (1_000_000, False)),
])  # fmt: skip
def test_how_many_flips(rounds, level, number):
    assert signflip.flips(rounds, level) == number


@pytest.mark.parametrize("rounds", [1, 5, 9])
def test_all_flips_are_gone_through_once(rounds):
    flipped = np.concatenate(list(signflip._signs(rounds, 2**rounds, exact=True)))
    assert {tuple(signs) for signs in flipped.tolist()} == set(itertools.product((1.0, -1.0), repeat=rounds))
    assert len(flipped) == 2**rounds


def test_many_families_at_once_are_each_on_their_own():
    scored = np.stack([random_scores(9, 3, seed, 0.8) for seed in range(6)], axis=1)
    alone = [signflip.least_p(scored[:, [family]], 0.9999)[0] for family in range(6)]
    assert signflip.least_p(scored, 0.9999).tolist() == alone


def test_scores_are_clipped_and_odd():
    base = np.random.default_rng(0).normal(0, 0.02, (12, 3))
    head = base + np.random.default_rng(1).normal(0, 0.02, (12, 3))
    head[4, 0] += 9
    scored = signflip.scores(base, head, 0.0)
    assert scored[4, 0] == 3
    assert (signflip.scores(head, base, 0.0) == -scored).all()
    assert scored.dtype == np.float32


def test_exchanging_the_sides_of_a_round_flips_its_scores_only():
    """What makes the flips exact: the scale does not know which side is which, at any delta."""
    rng = np.random.default_rng(2)
    base, head = rng.normal(0, 0.05, (2, 15, 4))
    delta = 0.05
    shift = math.log1p(delta)
    turned = rng.random(15) < 0.5
    other_base = np.where(turned[:, None], head - shift, base)
    other_head = np.where(turned[:, None], base + shift, head)
    signs = np.where(turned, -1, 1)[:, None]
    # Rounding of floats may move a score by one grain.
    assert signflip.scores(other_base, other_head, shift) == pytest.approx(
        signs * signflip.scores(base, head, shift), abs=2**-13
    )


def test_the_noise_is_that_of_the_difference():
    rng = np.random.default_rng(5)
    base, head = rng.normal(0, 0.02, (2, 4001, 1))
    ratios = head - base
    unclipped = np.abs(signflip.scores(base, head, 0.0)) < 3
    scale = np.median(ratios[unclipped] / signflip.scores(base, head, 0.0)[unclipped])
    assert scale == pytest.approx(0.02 * math.sqrt(2), rel=0.05)
    assert signflip.scores(base + 1.0, head + 1.0, 0.0) == pytest.approx(signflip.scores(base, head, 0.0), abs=0.001)


def test_a_clock_too_coarse_to_show_noise_is_no_certainty():
    base = np.zeros((10, 1))
    assert signflip.scores(base, base + 0.0025, 0.0).max() == pytest.approx(0.5)


def test_slow_kernels_are_named_and_no_others():
    measured = rounds(slower={"k3": 1.3, "k7": 1.6})
    found = KernelTest(NAMES, 0.005).look(measured)
    assert [kernel.name for kernel in found] == ["k7", "k3"]
    assert [kernel.effect for kernel in found] == pytest.approx([0.6, 0.3], abs=0.05)
    assert all(kernel.p <= 0.005 / 4 and kernel.rounds == 10 for kernel in found)


def test_a_common_change_blames_all_and_removes_nothing():
    everything = rounds(slower=dict.fromkeys(NAMES, 1.3), common=0.02)
    assert set(named(everything)) == set(NAMES)
    faster = rounds(slower=dict.fromkeys(NAMES[1:], 0.7))
    assert named(faster) == []  # k0 did not change: it is not blamed for what the others gained


@pytest.mark.parametrize("factor, found", [(1.04, []), (1.3, ["k5"])])
def test_within_delta_is_noise(factor, found):
    assert named(rounds(slower={"k5": factor})) == found
    assert named(rounds(slower={"k5": 1.04}, sd=0.005), delta=0.0) == ["k5"]


def test_looks_follow_the_level():
    measured = rounds(slower={"k1": 1.5})
    assert named(measured[:9]) == []
    assert named(measured[:10]) == ["k1"]
    assert named(measured[:10], alpha=0.00025) == []
    (kernel,) = KernelTest(NAMES, 0.00025).look(measured)
    assert (kernel.rounds, kernel.p <= 0.00025 / 4) == (14, True)
    assert named(measured[:12], alpha=0.003, most_rounds=12) == ["k1"]
    assert KernelTest(NAMES, 0.00025).look(measured[:13]) == ()
    late = rounds(2, seed=9) + rounds(11, slower={"k1": 2.0})
    assert named(late) == []
    assert [kernel.rounds for kernel in KernelTest(NAMES, 0.005).look(late, ended=True)] == [13]


def test_a_kernel_that_a_side_lacks_is_not_timed():
    measured = rounds(slower={"k1": 1.5, "k2": 1.5})
    gone = dict(measured[4].kernels_head)
    del gone["k2"]
    measured[4] = Round(measured[4].order, {}, {}, measured[4].kernels_base, gone)
    assert named(measured) == ["k1"]
    assert named(measured, kernels=("k2", "other")) == []


def test_the_family_is_what_carries_the_step():
    assert signflip.family({"gemm": 0.6, "copy": 0.005, "fill": 0.0049}) == ("gemm", "copy")
    with pytest.raises(ValueError, match="no kernel to test"):
        KernelTest((), 0.005)


def test_the_same_rounds_give_the_same_answer():
    measured = rounds(slower={"k1": 1.2}, sd=0.06)
    assert KernelTest(NAMES, 0.005).look(measured) == KernelTest(NAMES, 0.005).look(measured)
