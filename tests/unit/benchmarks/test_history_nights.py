"""The simulated nights: what stories tell, and what other rules make of one that every reader can follow."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[3] / "benchmarks" / "history"
sys.path.append(str(HERE))

import numpy as np  # noqa: E402
from detection import finds, history, simulated  # noqa: E402
from nights import RECORDING, TESTS, Bank, Change, Story  # noqa: E402
from other_rules import fastvideo, pytorch_hud, tensorrt_llm  # noqa: E402

STEP = [10.0] * 20 + [11.0] * 20
CREEP = [10.0 * 1.01 ** min(max(night - 20, 0), 8) for night in range(40)]


def test_a_story_knows_the_code_and_the_environment_of_every_night():
    story = Story("creep", "loader", (Change(3, 0.9), Change(4, 1.01), Change(6, 1.0, 1.02)))

    assert [story.code(night) for night in (2, 3, 5)] == pytest.approx([1, 0.9, 0.909])
    assert [story.version(night) for night in (2, 3, 5, 9)] == [0, 3, 4, 4]
    assert [story.environment(night) for night in (5, 6)] == [(0, 1.0), (1, 1.02)]


@pytest.mark.parametrize(
    "rule, alarms, base",
    [(fastvideo, range(20, 23), 11.0), (tensorrt_llm, [20], 10.0), (pytorch_hud, [], 11.0)],
    ids=["fastvideo", "tensorrt-llm", "hud"],
)
def test_a_step_of_a_tenth(rule, alarms, base):
    """FastVideo reports it until three of five nights are slow, TensorRT-LLM once, the HUD never."""
    told, bases = rule(STEP)

    assert [night for night, alarm in enumerate(told) if alarm] == list(alarms)
    assert bases[-1] == pytest.approx(base)


def test_the_mean_of_five_creeps():
    told, bases = fastvideo(CREEP)

    assert not any(told)
    assert bases[-1] == pytest.approx(CREEP[-1])


def test_a_planted_step_is_found_in_the_run_files_of_nights():
    """The real gate, run files and history: what `detection.py` counts, for one test."""
    bank, rng = Bank(RECORDING, TESTS, count=0), np.random.default_rng(1)
    found = history(simulated(Story("step", "transformer", (Change(13, 1.045),)), bank, rng, nights=18))

    assert [int(point.commit, 16) for point in found.points] == list(range(1, 19))
    assert finds(found, 13)
    assert not finds(found, 3)
    (change,) = found.change_points
    assert change.effect == pytest.approx(0.045, abs=0.01)
