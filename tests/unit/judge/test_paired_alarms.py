"""The promise: under 1 % of the suites of unchanged code raise an alarm, whatever the noise; and its price.

Suites of 10 tests with two summaries and 10 kernels each, all confirmed: statistics.md, section 6, point 1, with
half of its 2000 suites. All of them, power and honesty: benchmarks/decision_quality/synthetic.py.
"""

import math
from dataclasses import replace

import numpy as np
import paired_suites as synthetic
import pytest

from pytest_perfdl.judge import sequential
from pytest_perfdl.judge.paired import PairedTest, Suspect
from pytest_perfdl.judge.rounds import Round, broken, orders
from pytest_perfdl.judge.signflip import KernelTest
from pytest_perfdl.judge.spending import Spending
from pytest_perfdl.limits import Limit

SUITES = 1000
SEED = 1


def test_the_bound_is_that_of_one_percent():
    assert synthetic.most_alarms(2000) == 29
    # By hand: the mean is 10, the deviation 3.15, and 10 + 1.96 * 3.15 is 16.2.
    assert synthetic.most_alarms(1000) == 17


@pytest.mark.parametrize("null", synthetic.NULLS)
def test_unchanged_code_raises_no_more_alarms_than_promised(null):
    found = synthetic.alarms(synthetic.unchanged(null, SUITES, SEED))
    step_time, block_time, _ = found.sum(axis=0)
    assert found.any(axis=1).sum() <= synthetic.most_alarms(SUITES)
    # Times of steps have half of the promise, and each summary stays within it.
    assert max(step_time, block_time) <= synthetic.most_alarms(SUITES, 0.005)


@pytest.mark.parametrize("mutant, suites", [
    ("fixed order", 200),
    ("steps pooled", 500),
    ("minima of unequal n", 200),
    ("looks not split", SUITES),
])  # fmt: skip
def test_a_mistaken_procedure_breaks_the_promise(mutant, suites):
    found = synthetic.mutant_alarms(mutant, suites, SEED)
    assert found.any(axis=1).sum() > synthetic.most_alarms(suites)


def test_every_mutant_is_tried():
    assert len(synthetic.MUTANTS) == 4


@pytest.mark.parametrize("null", ["t1.5", "bimodal"])
def test_slower_by_less_than_the_limit_is_not_regressed_either(null):
    suites, more = synthetic.unchanged(null, 300, SEED), math.log1p(0.02)
    slower = replace(suites, head=suites.head + more, kernels_head=suites.kernels_head + more)
    assert synthetic.alarms(slower, delta=0.03).any(axis=1).sum() <= synthetic.most_alarms(300)


def test_what_was_counted_here_is_what_a_suite_is_told():
    """The same rounds through the door that the plugin uses."""
    suites = synthetic.unchanged("neighbour", 1, SEED)
    slowed = np.random.default_rng(0).choice([0.0, 0.3, 0.9], (suites.base.shape[0], 1, 1))
    suites = replace(suites, head=suites.head + slowed, kernels_head=suites.kernels_head + slowed[:, 0])
    alpha = Spending(synthetic.TESTS, screened=False).level(())
    plan = sequential.Plan.of(alpha, 2)
    regressed = synthetic.regressed(suites.head - suites.base, plan)
    slow = synthetic.slow_kernels(suites.kernels_base, suites.kernels_head, sequential.Plan.of(alpha, 1), 0.0)
    names = tuple(f"k{number}" for number in range(synthetic.KERNELS))
    any_slower = Limit("0%", 0.0)
    for lane in range(0, len(suites.base), 2):
        rounds = [
            Round(
                order,
                dict(zip(synthetic.SUMMARIES, np.exp(suites.base[lane, :, number].astype(float)), strict=True)),
                dict(zip(synthetic.SUMMARIES, np.exp(suites.head[lane, :, number].astype(float)), strict=True)),
                dict(zip(names, np.exp(suites.kernels_base[number, lane].astype(float)), strict=True)),
                dict(zip(names, np.exp(suites.kernels_head[number, lane].astype(float)), strict=True)),
            )
            for number, order in enumerate(orders(lane, synthetic.ROUNDS))
        ]
        test = PairedTest(tuple(Suspect(name, any_slower) for name in synthetic.SUMMARIES), alpha)
        outcome = test.look(rounds)
        told = [outcome.decided[name].verdict == "regressed" for name in synthetic.SUMMARIES]
        assert told == regressed[lane].tolist()
        assert bool(KernelTest(names, alpha, delta=0.0).look(rounds)) == slow[lane]
    assert 0 < regressed[::2].sum() < regressed[::2].size
    assert 0 < slow[::2].sum() < slow[::2].size


def test_a_fixed_order_is_refused_before_it_can_alarm_twice():
    # The mutant above alarms in every suite; rounds that name their order are refused from the 15th on.
    rounds = [Round("base first", {"x": 1.0 + n}, {"x": 2.0 + n}) for n in range(15)]
    assert broken(rounds, ("x",))


@pytest.mark.parametrize("slower, limit, least", [(0.05, 0.03, 0.95), (0.10, 0.03, 0.999), (0.03, 0.02, 0.35)])
def test_real_slowdowns_are_found(slower, limit, least):
    """The first of 20 suspects, with the noise of ping-pong rounds (1.6 %)."""
    rng, tests = np.random.default_rng(SEED), 1000
    shared, own = rng.standard_normal((tests, 1, 30)), rng.standard_normal((tests, 2, 30))
    ratios = 0.016 * (math.sqrt(0.8) * shared + math.sqrt(0.2) * own) + math.log1p(slower)
    plan = sequential.Plan.of(Spending(20).level(()), 2)
    assert synthetic.regressed(ratios - math.log1p(limit), plan).any(axis=1).mean() >= least


@pytest.mark.parametrize("null", synthetic.NULLS)
def test_slower_than_the_limit_is_rarely_called_unchanged(null):
    suites, past = synthetic.unchanged(null, 200, SEED, kernels=0), math.log1p(0.03)
    ratios = np.asarray(suites.head - suites.base, float) + past + 1e-9
    plan = sequential.Plan.of(0.005, 2)
    found, _ = sequential.replay(ratios - past, -ratios - past, plan, plan.until(30))
    share = (found == sequential.UNCHANGED).mean(axis=0)
    assert share.max() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / found.shape[0])
