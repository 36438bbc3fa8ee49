"""A step around a loop is said to be one."""

from __future__ import annotations

import pytest

from pytest_perfdl.analysis.events.steps import steps_of
from unit.trace.chrome import launch, step, trace, x

ITERATION = ["embedding", *["mm", "relu", "add"] * 12, "loss"]


def said(names, *more, begin=0):
    made = trace(*more, *(x(f"aten::{name}", begin + 10 * at, 5) for at, name in enumerate(names)))
    found = [each for each in steps_of(made).findings if each.code == "repetitions"]
    return found[0].message if found else ""


@pytest.mark.parametrize("before", [0, 10])
def test_a_step_around_a_loop(before):
    names = [*["init"] * before, *ITERATION * 10]
    assert said(names, step(3, 0, 10 * len(names))) == (
        "the only step repeats the same 38 operators and launches 10 times: it may hold 10 iterations, if these are "
        "not equal layers of one"
    )


def test_launches_are_part_of_what_repeats():
    calls = [launch(10 * at + 6, 2, at + 1, name="hipLaunchKernel") for at in range(5)]
    assert "the same 2 operators and launches 5 times" in said(["mm"] * 5, *calls)


def test_a_trace_without_steps():
    assert said(ITERATION * 3).startswith("the trace, which has no steps, repeats the same 38 operators and launches 3")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(ITERATION * 2, id="two are too few"),
        pytest.param([*ITERATION * 3, *(f"other{at}" for at in range(38))], id="more than the loop"),
        pytest.param([*ITERATION, "extra", *ITERATION, "other", *ITERATION], id="not equal"),
        pytest.param(["mm"] * 5, id="too little"),
    ],
)
def test_what_is_no_loop(names):
    assert said(names, step(3, 0, 10 * len(names))) == ""


def test_several_steps_are_not_asked():
    names = ITERATION * 6
    half = 5 * len(names)
    assert said(names, step(3, 0, half), step(4, half, half)) == ""
