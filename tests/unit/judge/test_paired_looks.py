"""When a paired test looks, and what it decides there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_perfdl.judge import sequential
from pytest_perfdl.judge.sequential import IMPROVED, REGRESSED, UNCHANGED, UNDECIDED, Look, Plan
from pytest_perfdl.judge.signedrank import p_above

FULL = 0.005


@pytest.mark.parametrize("alpha, suspects, most, rejecting", [
    # By hand: n rounds reach 2**-n; the first look needs 2**-n <= alpha / (looks * suspects).
    (0.005, 1, 30, (10, 15, 20, 30)),  # 2**-10 = .00098 <= .00125
    (0.005, 2, 30, (11, 15, 20, 30)),  # 2**-11 <= .000625
    (0.00025, 2, 30, (15, 20, 30)),  # 2**-15 = 3.05e-5 <= 3.1e-5
    (0.0001, 2, 30, (17, 20, 30)),
    (1e-6, 2, 30, (23, 30)),
    (2e-9, 1, 30, (30,)),  # 2**-30 = 9e-10, with all of alpha for the last look
    (1e-10, 1, 30, ()),
    (0.005, 1, 9, (9,)),
    (0.005, 1, 12, (10, 12)),
    (0.005, 1, 40, (10, 15, 20, 30, 40)),
    (0.005, 1, 5, ()),
])  # fmt: skip
def test_looks_that_cannot_reject_are_moved_or_dropped(alpha, suspects, most, rejecting):
    plan = Plan.of(alpha, suspects, most)
    assert plan.rejecting == rejecting
    assert all(2.0**-look <= plan.level / suspects for look in rejecting)
    assert plan.level * len(rejecting) == pytest.approx(alpha if rejecting else 0)
    assert plan.clearing[-1] == most == plan.all[-1]
    assert plan.least == (rejecting[0] if rejecting else plan.least)
    assert plan.clearing_level * len(plan.clearing) == pytest.approx(0.05)
    assert (1 - plan.confidence) * len(plan.all) == pytest.approx(0.05)


@pytest.mark.parametrize("alpha, suspects, most", [(0, 1, 30), (1, 1, 30), (0.005, 0, 30), (0.005, 1, 0)])
def test_what_is_no_test_is_refused(alpha, suspects, most):
    with pytest.raises(ValueError, match="no test of level"):
        Plan.of(alpha, suspects, most)


def test_looks_that_rounds_have_passed():
    plan = Plan.of(FULL / 20, 2)
    assert plan.until(9) == ()
    assert plan.until(19) == (Look(10, rejects=False, clears=True), Look(15, rejects=True, clears=True))
    assert plan.until(99)[-1] == Look(30, rejects=True, clears=True)


def test_a_budget_that_ends_takes_the_next_look_early():
    plan = Plan.of(FULL / 20, 2)
    assert plan.until(17, ended=True)[-1] == Look(17, rejects=True, clears=True)
    assert plan.until(12, ended=True)[-1] == Look(12, rejects=False, clears=True)
    assert plan.until(15, ended=True) == plan.until(15)
    assert plan.until(30, ended=True) == plan.until(30)
    assert plan.until(0, ended=True) == ()
    for rounds in range(31):
        taken = plan.until(rounds, ended=True)
        assert sum(look.rejects for look in taken) <= len(plan.rejecting)
        assert sum(look.clears for look in taken) <= len(plan.clearing)
        assert len(taken) <= len(plan.all)


@pytest.mark.parametrize("p, rejected", [
    # By hand at .05: the smallest against .05 / 3, the next against .05 / 2, the last against .05.
    ((0.01, 0.02, 0.04), (True, True, True)),
    ((0.04, 0.02, 0.01), (True, True, True)),
    ((0.01, 0.03, 0.04), (True, False, False)),
    ((0.02, 0.02, 0.02), (False, False, False)),
    ((0.5, 0.01, 0.02), (False, True, True)),
])  # fmt: skip
def test_holm(p, rejected):
    assert sequential.holm(np.array(p), 0.05).tolist() == list(rejected)
    assert sequential.holm(np.array([p, p]), 0.05).tolist() == [list(rejected)] * 2


def decide(ratios, limit=0.03, alpha=FULL, rounds=None):
    ratios = np.atleast_2d(ratios)
    plan = Plan.of(alpha, len(ratios))
    found, when = sequential.replay(ratios - limit, -ratios - limit, plan, plan.until(rounds or ratios.shape[-1]))
    return found.tolist(), when.tolist()


def series(middle, spread=0.01, rounds=30, seed=1):
    return np.random.default_rng(seed).normal(middle, spread, rounds)


@pytest.mark.parametrize("middle, verdict", [(0.0, UNCHANGED), (0.2, REGRESSED), (-0.2, IMPROVED), (0.03, UNDECIDED)])
def test_what_one_suspect_is_decided_to_be(middle, verdict):
    assert decide(series(middle)) == ([verdict], [10 if verdict else 0])


def test_looks_are_not_taken_before_their_time():
    ratios = series(0.2)
    assert decide(ratios[:9]) == ([UNDECIDED], [0])
    assert decide(ratios[:10]) == ([REGRESSED], [10])


def test_the_first_decision_stands():
    ratios = np.concatenate([series(0.0, rounds=10), series(0.3, 0.001, rounds=20)])
    assert decide(ratios)[0] == [UNCHANGED]
    assert decide(ratios[10:])[0] == [REGRESSED]


def test_with_two_suspects_each_has_half_the_level():
    ten = np.arange(1, 11) / 100 + 0.03
    rest = np.zeros(20) + 0.03
    alone, beside = np.concatenate([ten, rest]), series(0.0)
    assert decide(alone)[0] == [REGRESSED]  # p = 2**-10 <= .005 / 4
    assert decide(np.stack([alone, beside]))[0] == [UNDECIDED, UNCHANGED]


def test_what_holm_rejects_at_one_look_leaves_its_level_to_later_ones():
    weak = np.random.default_rng(0).normal(0.05, 0.022, (2000, 30))
    plan = Plan.of(FULL, 2)

    def regressed(beside):
        ratios = np.stack(np.broadcast_arrays(weak, beside), axis=1)
        found, _ = sequential.replay(ratios - 0.03, -ratios - 0.03, plan, plan.until(30))
        return found[:, 0] == REGRESSED

    # Rejected after 11 rounds, long past it after 30.
    fading = np.concatenate([series(0.3, rounds=11), series(-0.3, rounds=19)])
    alone, helped = regressed(series(0.0)), regressed(fading)
    assert not (alone & ~helped).any()
    assert (helped & ~alone).sum() > 40


@given(st.integers(0, 10**6), st.integers(10, 30), st.sampled_from([0.0, 0.02, 0.05]))
def test_slower_rounds_never_take_back_regressed(seed, rounds, middle):
    ratios = series(middle, 0.02, rounds, seed)
    slower = ratios + np.random.default_rng(seed + 1).exponential(0.01, rounds)
    plan = Plan.of(FULL, 1)
    looks = [Look(look.rounds, look.rejects, clears=False) for look in plan.until(rounds)]
    found = [
        sequential.replay(each[None] - 0.03, -each[None] - 0.03, plan, looks)[0][0] == REGRESSED
        for each in (ratios, slower)
    ]
    assert found[0] <= found[1]


@given(st.integers(0, 10**6), st.integers(10, 30))
def test_exchanging_the_sides_exchanges_the_verdicts(seed, rounds):
    ratios = np.stack([series(0.04, 0.02, rounds, seed), series(0.0, 0.02, rounds, seed + 1)])
    mirror = {REGRESSED: IMPROVED, IMPROVED: REGRESSED, UNCHANGED: UNCHANGED, UNDECIDED: UNDECIDED}
    found, when = decide(ratios)
    assert decide(-ratios) == ([mirror[each] for each in found], when)


def test_many_tests_at_once_are_each_on_their_own():
    rng = np.random.default_rng(9)
    ratios = rng.normal(rng.choice([0.0, 0.04, 0.06, -0.05], (50, 2, 1)), 0.02, (50, 2, 30))
    plan = Plan.of(FULL, 2)
    found, when = sequential.replay(ratios - 0.03, -ratios - 0.03, plan, plan.until(30))
    assert [(f.tolist(), w.tolist()) for f, w in zip(found, when, strict=True)] == [decide(each) for each in ratios]
    assert len(np.unique(found)) == 4


def test_open_ended_is_right_about_every_future():
    """For a small plan: the most extreme future decides exactly when it says that some future may."""
    plan = Plan.of(0.1, 1, 12)
    assert plan.all == (10, 12)
    rng, closed = np.random.default_rng(3), 0
    for _ in range(300):
        ratios = rng.normal(0.0, 1.0, (1, 11)) + rng.choice([-0.5, 0.0, 0.5])
        worse, better = ratios - 0.6, -ratios - 0.6
        may = bool(sequential.open_ended(worse, better, plan)[0])
        ends = []
        for last in (-1e6, 0.0, 1e6):
            rest = np.append(ratios, [[last]], axis=1)
            ends.append(p_above(rest - 0.6)[0] <= plan.level or p_above(-rest - 0.6)[0] <= plan.level)
            within = max(p_above(0.6 - rest)[0], p_above(rest + 0.6)[0]) <= plan.clearing_level
            ends.append(within)
        assert any(ends) <= may
        closed += not may
    assert closed > 20


def test_nothing_is_open_after_the_last_look():
    ratios = series(0.03)[None]
    assert not sequential.open_ended(ratios - 0.03, -ratios - 0.03, Plan.of(FULL, 1)).any()
