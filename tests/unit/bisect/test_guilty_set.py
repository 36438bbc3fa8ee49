"""The search for guilty differences, against every set of a few."""

import itertools
import math
import random

import pytest

from pytest_perfdl.bisect.guilty_set import guilty_set

NAMES = tuple("abcdefgh")


class Trials:
    """A step that is slow with all of these differences; sets that hold some of the refused without the others fail."""

    def __init__(self, guilty, together=()):
        self.guilty, self.together, self.tried = frozenset(guilty), frozenset(together), []

    def __call__(self, chosen):
        assert chosen not in self.tried
        self.tried.append(chosen)
        if self.together & chosen and not self.together <= chosen:
            return None
        return self.guilty <= chosen


@pytest.mark.parametrize("number", [1, 2, 3, 7, 8, 9])
def test_one_of_several_takes_a_trial_for_each_halving_and_one_to_prove_it(number):
    names = [f"package-{each}" for each in range(number)]
    for guilty in names:
        trials = Trials([guilty])
        found = guilty_set(names, trials)
        assert (found.guilty, found.is_smallest) == ({guilty}, True)
        assert len(trials.tried) <= math.ceil(math.log2(number)) + 1


@pytest.mark.parametrize("size", [2, 3])
def test_several_that_act_together_are_all_named(size):
    for guilty in itertools.combinations(NAMES, size):
        found = guilty_set(NAMES, Trials(guilty))
        assert (found.guilty, found.is_smallest) == (set(guilty), True)


def test_one_that_is_suspected_takes_one_trial():
    trials = Trials("f")

    assert guilty_set(NAMES, trials, likely=["f"]).guilty == {"f"}
    assert trials.tried == [{"f"}]


def test_a_wrong_suspicion_costs_one_trial():
    trials = Trials("c")

    assert guilty_set(NAMES, trials, likely=["f"]).guilty == {"c"}
    assert len(trials.tried) <= 1 + 4


def test_either_of_two_that_are_slow_alone_is_named():
    def is_slow(chosen):
        return bool(chosen & {"b", "g"})

    assert guilty_set(NAMES, is_slow).guilty in ({"b"}, {"g"})


@pytest.mark.parametrize("guilty", NAMES)
def test_packages_that_only_work_together_are_named_together(guilty):
    trials = Trials(guilty, together="cf")
    found = guilty_set(NAMES, trials)

    assert guilty in found.guilty
    assert found.guilty <= {guilty, "c", "f"}
    assert len(found.guilty) == (2 if guilty in "cf" else 1)


def test_what_trials_could_not_tell_is_not_called_the_smallest():
    def is_slow(chosen):
        return None

    found = guilty_set("abc", is_slow)
    assert (found.guilty, found.is_smallest) == (set("abc"), False)


def test_no_set_is_tried_twice_and_the_result_is_slow():
    draw = random.Random(3)
    for _ in range(200):
        names = [str(each) for each in range(draw.randint(1, 12))]
        guilty = draw.sample(names, draw.randint(1, min(3, len(names))))
        found = guilty_set(names, Trials(guilty), likely=draw.sample(names, draw.randint(0, min(2, len(names)))))
        assert found.guilty == set(guilty)
