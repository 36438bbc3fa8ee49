"""Rounds that were measured are kept and not measured again, and blame is asked of them."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_perfdl.analysis.account.parts import StepParts
from pytest_perfdl.judge.round_data import Round, orders
from pytest_perfdl.model.step_part import Part

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "blame"))

import comparison
import measuring
import scoring
from planted_change import first_line

TASK = scoring.Task("quick", "pairs_counted", "gpt", 0)
LINE = first_line("gpt.count_pairs")
MICROSECOND = 1_000
OPERATORS = tuple(Part("operator", f"aten::op{number}", module="GPT.blocks") for number in range(3))


def step(python_us, *, line="", noise=0):
    """Two steps of three operators and some time of Python."""
    ns = np.array([[100], [200], [300 + noise], [python_us]], dtype=np.int64) * MICROSECOND * np.ones((1, 2), np.int64)
    count = np.array([[1], [2], [3], [0]], dtype=np.int64) * np.ones((1, 2), np.int64)
    python = Part("idle", "Python and host", line=line)
    classes = ("forward",) * 3 + ("Python and host",)
    return StepParts(False, ns.sum(axis=0), (*OPERATORS, python), classes, ns, ns, count)


def a_round(number, slower_us):
    noise = number % 3
    base, head = 1000.0 + number, (1000.0 + number) * (1 + slower_us / 1000)
    return Round(
        order="base first",
        base={"step_p50": base},
        head={"step_p50": head},
        parts_base={"": step(50, noise=noise)},
        parts_head={"": step(50 + slower_us, noise=-noise)},
    )


@pytest.fixture
def made(monkeypatch):
    """What was measured, in this order, instead of measuring it."""
    found = []

    def measure_round(task, order, scratch):
        found.append(order)
        return a_round(len(found), 40)

    def measure_stacks(task, plant, scratch):
        found.append(f"stacks of {plant or 'base'}")
        return {"": step(500 if plant else 50, line=LINE)}

    monkeypatch.setattr(measuring, "_round", measure_round)
    monkeypatch.setattr(measuring, "_stacks", measure_stacks)
    return found


def test_only_what_is_missing_is_measured(made, tmp_path):
    few = measuring.measure(TASK, 2, tmp_path)
    assert len(few.rounds) == 2
    assert made[2:] == ["stacks of base", "stacks of pairs_counted"]
    more = measuring.measure(TASK, 5, tmp_path)
    assert [each.order for each in more.rounds] == ["base first"] * 5
    assert len(made) == 4 + 3, "two rounds and both stack passes were there"
    drawn = orders(measuring.zlib.crc32(str(TASK).encode()), 5)
    assert (*made[:2], *made[4:]) == drawn
    assert measuring.measure(TASK, 5, tmp_path).seconds == more.seconds
    assert len(made) == 7


def test_a_round_is_kept_though_the_next_one_fails(made, monkeypatch, tmp_path):
    measure_round = measuring._round

    def fail_later(*arguments):
        if len(made) == 2:
            raise scoring.ComparingError("gone")
        return measure_round(*arguments)

    monkeypatch.setattr(measuring, "_round", fail_later)
    with pytest.raises(scoring.ComparingError):
        measuring.measure(TASK, 4, tmp_path)
    assert len(measuring.kept(TASK, tmp_path).rounds) == 2
    assert measuring.kept(replace(TASK, number=1), tmp_path) is None


def test_unchanged_models_are_kept_apart(made, tmp_path):
    for model in ("gpt", "tagger"):
        measuring.measure(scoring.Task("quick", "", model, 0), 2, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert "stacks of pairs_counted" not in made


def test_blame_of_what_was_measured(made, tmp_path):
    found = scoring.score(comparison.judged(measuring.measure(TASK, 6, tmp_path)))
    assert found.rounds == 6
    assert found.timed.effect == pytest.approx(0.04)
    # Noise of the third operator cancels but for its mean: rounds 1 to 6 have 1, 2, 0 twice, against each other.
    assert found.profiled.new_ns - found.profiled.base_ns == (40 - 2) * MICROSECOND
    assert found.residual_ns == 0
    assert found.coverage == 1.0
    first = found.causes[0]
    assert (first.kind, first.delta_ns, first.line) == ("idle", 40 * MICROSECOND, LINE)
    assert found.right == scoring.Right(True, True, True)
    assert found.certain == found.named == 1
