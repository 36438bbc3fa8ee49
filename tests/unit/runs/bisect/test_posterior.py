"""The rule: where the posterior goes, what is measured next, and how often it is wrong."""

import math
import random

import pytest

from pytest_perfdl.runs.bisect.campaign import CommitSearch
from pytest_perfdl.runs.bisect.posterior import CLIP, EXACT, UNIFORM, Posterior, mixed, odds_of_rounds, uniform
from pytest_perfdl.runs.bisect.search import Options
from unit.runs.bisect.simulated import Simulated, made_up, stepped

SLOW, FAST = EXACT, -EXACT


def exact_search(last, culprit, prior=None):
    """Commits that plain bisection measures between the ends."""
    posterior, measured = Posterior(prior or uniform(last)), 0
    while not posterior.is_sure:
        number = posterior.next_commit()
        measured += 1
        posterior = Posterior(
            posterior.prior, {**posterior.log_odds, number: SLOW if number >= culprit else FAST}, posterior.skipped
        )
    assert posterior.best.first == posterior.best.last == culprit
    return measured


def test_the_probabilities_are_prior_times_odds():
    posterior = Posterior((0.25, 0.5, 0.25), {1: math.log(3), 2: math.log(0.5)})
    # H_1: slow at 1 and 2, 3 * 0.5; H_2: slow at 2 only, 0.5; H_3: slow at neither, 1.
    weights = [0.25 * 1.5, 0.5 * 0.5, 0.25]
    assert posterior.probabilities == pytest.approx([each / sum(weights) for each in weights])


@pytest.mark.parametrize("culprit", [1, 2, 17, 32, 63, 64])
def test_exact_odds_are_plain_bisection(culprit):
    assert exact_search(64, culprit) == 6


def test_one_commit_is_known_without_a_measurement():
    assert Posterior(uniform(1)).is_sure
    assert Posterior(uniform(1)).next_commit() is None


def test_odds_of_rounds_are_clipped():
    assert odds_of_rounds([0.5] * 40, 0.5) == CLIP
    assert odds_of_rounds([0.0] * 40, 0.5) == -CLIP


def test_commits_that_cannot_be_measured_are_one_candidate_with_the_next():
    posterior = Posterior(uniform(8), {3: FAST, 6: SLOW}, frozenset({4, 5}))
    assert posterior.is_sure
    assert (posterior.best.first, posterior.best.last) == (4, 6)
    assert posterior.next_commit() is None


def test_skipped_commits_elsewhere_do_not_matter():
    posterior = Posterior(uniform(8), {4: FAST, 5: SLOW}, frozenset({2, 7}))
    assert (posterior.best.first, posterior.best.last, posterior.is_sure) == (5, 5, True)


def test_unclear_odds_are_measured_again():
    posterior = Posterior(uniform(4), {2: math.log(20), 1: -CLIP})
    assert posterior.next_commit() == 2
    assert posterior.next_commit(exhausted={2}) == 3


def test_a_prior_that_misleads_costs_two_more_commits_at_most():
    random.seed(3)
    for culprit in range(1, 65):
        weights = [1.0] * 64
        for number in random.sample([each for each in range(64) if each != culprit - 1], 7):
            weights[number] = 20.0
        prior = mixed(weights)
        assert min(prior) >= UNIFORM / 64
        assert exact_search(64, culprit, prior) <= 8


def test_a_prior_that_is_right_spares_commits():
    random.seed(5)
    found = []
    for _ in range(20):
        culprit = random.randint(1, 64)
        weights = [1.0] * 64
        for number in {*random.sample(range(64), 6), culprit - 1}:
            weights[number] = 20.0
        found.append(exact_search(64, culprit, mixed(weights)))
    assert sorted(found)[10] <= 5


@pytest.mark.long
def test_the_wrong_commit_is_rarely_named():
    """The module's docstring has the figures of 400 searches."""
    wrong, named, measured = 0, 0, []
    for seed in range(60):
        culprit = random.Random(seed).randint(1, 64)
        measure = Simulated(times=stepped(64, culprit, 100.0, 104.0), noise=0.02, rounds=8, seed=seed)
        answer = CommitSearch(made_up(64), measure.measure, Options("step_time")).run()
        if answer.culprit is not None:
            named += 1
            wrong += answer.culprit.subject != f"c{culprit}"
            measured.append(len(answer.measured))
    assert wrong == 0
    assert named >= 58
    assert sorted(measured)[len(measured) // 2] <= 9
