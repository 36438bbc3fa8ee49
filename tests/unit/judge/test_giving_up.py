"""When the rounds of a suspect are given up, and that this decides nothing."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from pytest_perfdl.judge import futility
from pytest_perfdl.judge.paired import PairedTest, Suspect
from pytest_perfdl.judge.rounds import Round
from pytest_perfdl.judge.signflip import KernelTest
from pytest_perfdl.limits import parse_limit

LEVEL = 0.005 / 4
LOOKS = (10, 15, 20, 30)
SPREAD = np.array([-1.0, -0.4, 0.1, 0.3, 1.0])
"""Centre, mean and median near 0."""


def rounds_of(ratios, kernel=None):
    kernel = ratios if kernel is None else kernel
    return [
        Round(
            order="base first" if number % 2 else "head first",
            base={"step_time": 1e6},
            head={"step_time": 1e6 * math.exp(ratio)},
            kernels_base={"op": 1e5},
            kernels_head={"op": 1e5 * math.exp(slower)},
        )
        for number, (ratio, slower) in enumerate(zip(ratios, kernel, strict=True))
    ]


def paired():
    return PairedTest((Suspect("step_time", parse_limit("step_time", "3%")),), 0.005)


def conditional_power(past, look, level):
    """The formula, written down for one series without numpy's help."""
    size = len(past)
    walsh = sorted((past[i] + past[j]) / 2 for i in range(size) for j in range(i, size))
    half = len(walsh) // 2
    center = walsh[half] if len(walsh) % 2 else (walsh[half - 1] + walsh[half]) / 2
    mean = sum(past) / size
    spread = math.sqrt(sum((each - mean) ** 2 for each in past) / (size - 1))
    middle = sorted(past)[size // 2]
    quiet = min(max(1.4826 * sorted(abs(each - middle) for each in past)[size // 2], spread / 2), spread)
    worst = center + float(ndtri(0.95)) * spread / math.sqrt(size)
    left = look - size
    total = size * center + left * worst
    needed = math.sqrt(math.pi / 3) * float(ndtri(1 - level)) * quiet * math.sqrt(look)
    return float(ndtr((total - needed) / (spread * math.sqrt(left))))


@pytest.mark.parametrize("shift", [-2.0, -1.0, -0.5, -0.4, -0.3, -0.2, 0.0, 0.5], ids="{:+}".format)
@pytest.mark.parametrize("scale", [0.001, 0.05], ids="{:g}".format)
def test_the_formula(shift, scale):
    past = scale * (SPREAD + shift)
    expected = max(conditional_power(past.tolist(), look, LEVEL) for look in LOOKS) >= 0.05
    assert bool(futility.hopeful(past, LOOKS, LEVEL)) is expected


def test_both_answers_occur():
    answers = [bool(futility.hopeful(SPREAD + shift, LOOKS, LEVEL)) for shift in (-2.0, -1.0, 0.0, 1.0)]
    assert answers == [False, False, True, True]


def test_too_few_rounds_say_nothing_and_no_look_is_no_hope():
    past = np.full((2, futility.FEWEST - 1), -5.0)
    assert futility.hopeful(past, LOOKS, LEVEL).tolist() == [True, True]
    assert futility.hopeful(np.full((2, 30), 5.0), LOOKS, LEVEL).tolist() == [False, False]


def test_equal_rounds_are_no_division_by_zero():
    assert not futility.hopeful(np.full(5, -0.01), LOOKS, LEVEL)
    assert futility.hopeful(np.full(5, 0.01), LOOKS, LEVEL)


def test_what_is_given_up_is_inconclusive_with_the_reason():
    rounds = rounds_of(0.01 * SPREAD)
    test = paired()
    assert not test.hopeless(rounds[:4])
    assert test.hopeless(rounds)
    assert test.look(rounds).undecided == ("step_time",)
    outcome = test.look(rounds, given_up=True)
    verdict = outcome.decided["step_time"]
    assert (verdict.verdict, outcome.next_look, verdict.mde, verdict.rounds) == ("inconclusive", None, None, 5)
    assert "not on course to be past its limit" in verdict.reason


def test_slower_ones_are_not_given_up_and_decided_ones_are_not_waited_for():
    slower = rounds_of(0.01 * SPREAD + 0.08)
    assert not paired().hopeless(slower)
    decided = rounds_of(np.tile(0.01 * SPREAD, 3)[:10] + 0.08)
    assert paired().look(decided).decided["step_time"].verdict == "regressed"
    assert paired().hopeless(decided)


def test_giving_up_takes_no_look():
    """Twelve rounds that would be rejected if a look were taken there, which the end of a budget does."""
    past_look = rounds_of(math.log(1.03) + np.array([0.01, 0.02, 0.03, -0.035] + [0.1 + 0.01 * n for n in range(8)]))
    test = PairedTest((Suspect("step_time", parse_limit("step_time", "3%")),), 0.02)
    assert test.look(past_look, ended=True).decided["step_time"].verdict == "regressed"
    assert test.look(past_look, given_up=True).decided["step_time"].verdict == "inconclusive"


def test_kernels():
    test = KernelTest(("op",), 0.005)
    flat = 0.01 * SPREAD
    assert not test.hopeless([], ("op",))
    assert test.hopeless(rounds_of(flat), ("op",))
    assert not test.hopeless(rounds_of(flat, flat + 0.3), ("op",))
    assert test.hopeless(rounds_of(flat), ())
    assert test.hopeless(rounds_of(flat), ("gone",))
