"""The search for culprits, against every set of a few."""

import itertools
import math
import random

import pytest

from pytest_perfdl.runs.bisect.posterior import culprit_set

NAMES = tuple("abcdefgh")


class Trials:
    """A step that is slow with all of these differences; sets that hold some of the refused without the others fail."""

    def __init__(self, culprits, together=()):
        self.culprits, self.together, self.tried = frozenset(culprits), frozenset(together), []

    def __call__(self, chosen):
        assert chosen not in self.tried
        self.tried.append(chosen)
        if self.together & chosen and not self.together <= chosen:
            return None
        return self.culprits <= chosen


@pytest.mark.parametrize("number", [1, 2, 3, 7, 8, 9])
def test_one_of_several_takes_a_trial_for_each_halving_and_one_to_prove_it(number):
    names = [f"package-{each}" for each in range(number)]
    for culprit in names:
        trials = Trials([culprit])
        found = culprit_set(names, trials)
        assert (found.culprits, found.is_smallest) == ({culprit}, True)
        assert len(trials.tried) <= math.ceil(math.log2(number)) + 1


@pytest.mark.parametrize("size", [2, 3])
def test_several_that_act_together_are_all_named(size):
    for culprits in itertools.combinations(NAMES, size):
        found = culprit_set(NAMES, Trials(culprits))
        assert (found.culprits, found.is_smallest) == (set(culprits), True)


def test_one_that_is_suspected_takes_one_trial():
    trials = Trials("f")

    assert culprit_set(NAMES, trials, likely=["f"]).culprits == {"f"}
    assert trials.tried == [{"f"}]


def test_a_wrong_suspicion_costs_one_trial():
    trials = Trials("c")

    assert culprit_set(NAMES, trials, likely=["f"]).culprits == {"c"}
    assert len(trials.tried) <= 1 + 4


def test_either_of_two_that_are_slow_alone_is_named():
    def is_slow(chosen):
        return bool(chosen & {"b", "g"})

    assert culprit_set(NAMES, is_slow).culprits in ({"b"}, {"g"})


@pytest.mark.parametrize("culprit", NAMES)
def test_packages_that_only_work_together_are_named_together(culprit):
    trials = Trials(culprit, together="cf")
    found = culprit_set(NAMES, trials)

    assert culprit in found.culprits
    assert found.culprits <= {culprit, "c", "f"}
    assert len(found.culprits) == (2 if culprit in "cf" else 1)


def test_what_trials_could_not_tell_is_not_called_the_smallest():
    def is_slow(chosen):
        return None

    found = culprit_set("abc", is_slow)
    assert (found.culprits, found.is_smallest) == (set("abc"), False)


def test_no_set_is_tried_twice_and_the_result_is_slow():
    draw = random.Random(3)
    for _ in range(200):
        names = [str(each) for each in range(draw.randint(1, 12))]
        culprits = draw.sample(names, draw.randint(1, min(3, len(names))))
        found = culprit_set(names, Trials(culprits), likely=draw.sample(names, draw.randint(0, min(2, len(names)))))
        assert found.culprits == set(culprits)
