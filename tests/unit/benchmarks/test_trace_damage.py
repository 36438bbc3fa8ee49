"""Traces of known steps, of which one thing is damaged: every figure is right, or a line says why it is not.

`benchmarks/trace_damage/run.py` looks at ten times as many.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "trace_damage"))

import damages
import halves
import oracle

from unit.trace.data.synthetic_steps import SHAPES

EACH = 6
"""Damaged traces of a kind, 222 in all."""
WHOLE = 5
"""Undamaged traces of a kind of job, 110 in all."""


@pytest.mark.long
@pytest.mark.parametrize("place", range(len(damages.KINDS)), ids=[each.kind for each in damages.KINDS])
def test_of_a_damaged_trace_a_figure_is_right_or_it_is_said_why_not(place, tmp_path):
    for seed in range(place, EACH * len(damages.KINDS), len(damages.KINDS)):
        found = oracle.judge_damaged(*damages.case(seed), tmp_path)
        assert not found.traceback
        assert not found.wrong, f"python benchmarks/trace_damage/run.py --seed {seed}"


@pytest.mark.parametrize("place", range(len(SHAPES)), ids=[each.name for each in SHAPES])
def test_of_an_undamaged_trace_every_figure_is_right_and_nothing_is_said(place, tmp_path):
    for seed in range(place, WHOLE * len(SHAPES), len(SHAPES)):
        found = oracle.judge_undamaged(damages.undamaged_case(seed), tmp_path)
        assert (found.traceback, found.wrong, found.claims) == ("", (), ()), f"seed {seed}"


@pytest.mark.long
def test_halves_of_one_job_are_no_change_and_ten_percent_are(tmp_path):
    failed = []
    assert len(list(halves.rows(tmp_path, failed))) == 2
    assert failed == []


@pytest.mark.parametrize("place", range(len(damages.KINDS)), ids=[each.kind for each in damages.KINDS])
def test_a_damage_changes_the_file_and_leaves_true_what_it_says(place):
    for seed in range(place, 3 * len(damages.KINDS), len(damages.KINDS)):
        _, made, done = damages.case(seed)
        assert done.text != made.text()
        assert all(steps <= set(truth.walls) for steps, truth in zip(done.intact, done.truths, strict=True))


def test_the_oracle_finds_what_is_wrong():
    made = damages.undamaged_case(1)
    numbers = sorted(made.truth.walls)
    right = {
        "steps": [{"name": f"ProfilerStep#{number}", "wall_ns": made.truth.walls[number]} for number in numbers],
        "kernels": [
            {"kind": "compute", "per_step": {"total_ns": sum(made.truth.kernel_ns.values()) / len(numbers)}},
            {"kind": "copy", "per_step": {"total_ns": 1e9}},
        ],
    }
    assert list(oracle.wrong_figures(right, made.truth)) == []
    first = right["steps"][0]
    for steps in (
        [{**first, "wall_ns": round(1.02 * first["wall_ns"])}, *right["steps"][1:]],
        [first, *right["steps"]],
        [{**first, "name": "ProfilerStep#99"}, *right["steps"][1:]],
        [{"name": "whole trace", "wall_ns": 1}],
    ):
        assert list(oracle.wrong_figures({**right, "steps": steps}, made.truth))
    more = [{**row, "per_step": {"total_ns": 1.02 * row["per_step"]["total_ns"]}} for row in right["kernels"]]
    assert list(oracle.wrong_figures({**right, "kernels": more}, made.truth))
    assert oracle.shown([right], made.truth, frozenset(numbers), frozenset(numbers)) == (True, True)
    fewer = {**right, "steps": right["steps"][1:]}
    assert oracle.shown([fewer], made.truth, frozenset(numbers), frozenset(numbers)) == (False, None)


def test_a_step_may_be_left_out_only_if_three_others_agree():
    made = damages.undamaged_case(0)
    numbers = sorted(made.truth.walls)
    assert not any(oracle.may_differ(made, number) for number in numbers)
    others = {number: {"aten::mm": 1} for number in range(4)}
    changed = replace(made, signatures={**others, 4: {}}, truth=replace(made.truth, walls=dict.fromkeys(range(5), 1)))
    assert [number for number in range(5) if oracle.may_differ(changed, number)] == [4]
    inside = replace(changed, signatures={**others, 2: {}, 4: {"aten::mm": 1}})
    assert not any(oracle.may_differ(inside, number) for number in range(5))
