"""The pictures of what a verdict on a time rests on: each round, or each process, the limit and the interval."""

import re

import pytest

from pytest_perfdl.report import evidence
from unit.report import runs

PAIRS = ((40_000_000.0, 44_000_000.0), (41_000_000.0, 45_510_000.0), (50_000_000.0, 50_500_000.0))


def paired(**more):
    values = {"evidence": "paired", "rounds": 3, "pairs": PAIRS, "limit": "3%", "ci95": (0.01, 0.11)}
    return runs.timed(**{**values, **more})


def picture(*metrics, **more):
    (drawn,) = evidence.pictures(runs.result(metrics=metrics, **more))
    return drawn


def dots(svg, kind="dot"):
    return [float(x) for x in re.findall(rf'<circle class="{kind}" cx="([-\d.]+)"', svg)]


def line(svg, kind):
    (x,) = re.findall(rf'<path class="{kind}" d="M([-\d.]+),', svg)
    return float(x)


def test_a_dot_for_each_round_on_the_scale_of_the_limit_and_the_interval():
    drawn = picture(paired())
    zero, limit = line(drawn.svg, "zero"), line(drawn.svg, "limit")
    scale = (limit - zero) / 0.03
    assert [(x - zero) / scale for x in dots(drawn.svg)] == pytest.approx([0.10, 0.11, 0.01], abs=1e-3)
    ((left, wide),) = re.findall(r'<rect class="interval" x="([\d.]+)" y="30" width="([\d.]+)"', drawn.svg)
    assert [(float(left) - zero) / scale, float(wide) / scale] == pytest.approx([0.01, 0.10], abs=1e-3)
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', drawn.svg)]
    assert heights == sorted(heights), "the first round is on top"
    assert "round 2: 41.00 ms → 45.51 ms, +11.0%" in drawn.svg
    assert "limit +3.0%" in drawn.svg
    assert "95% interval" in drawn.svg
    assert (
        'aria-label="step_time, change from baseline to current: 3 paired rounds, +1.0% to +11.0%. '
        'Change +9.4%, 95% interval +1.0% to +11.0%. Limit +3.0%."' in drawn.svg
    )


def test_a_metric_of_which_more_is_better_has_its_limit_below():
    drawn = picture(paired(name="step_time", better="higher"))
    assert line(drawn.svg, "limit") < line(drawn.svg, "zero")


def test_of_rounds_whose_values_are_not_known_there_is_the_interval():
    drawn = picture(paired(pairs=()))
    assert dots(drawn.svg) == []
    assert 'class="interval"' in drawn.svg
    assert drawn.note == "this run file contains only the interval, not the rounds"


def test_without_rounds_the_processes_of_the_recording_and_the_current_ones():
    both = {"base": runs.record("t", repeats=10), "new": runs.record("t", repeats=5, step=45_000_000)}
    drawn = picture(runs.timed(evidence="unpaired"), **both)
    assert len(dots(drawn.svg)) == 5
    assert len(dots(drawn.svg, "dot recorded")) == 10
    assert min(dots(drawn.svg)) > max(dots(drawn.svg, "dot recorded"))
    assert re.search(
        r"recorded baseline processes: median [\d.]+ ms, [\d.]+ ms to [\d.]+ ms in 10 processes", drawn.svg
    )
    assert 'class="whisker"' in drawn.svg


def test_what_is_near_is_labeled_apart_and_nothing_beyond_the_edge():
    close = picture(paired(pairs=((100.0, 103.0), (100.0, 104.0)), ci95=(0.03, 0.035)))
    places = re.findall(r'<text class="(limit|interval)" x="([\d.]+)" y="(\d+)" text-anchor="(\w+)"', close.svg)
    assert len({(y, anchor) for _, _, y, anchor in places}) == 2
    assert all(8 <= float(x) <= evidence.WIDTH for _, x, _, _ in places)


@pytest.mark.parametrize(
    "metric",
    [
        runs.counted(),
        runs.timed("cpu_time", verdict=None),
        paired(pairs=((0.0, 1.0),), ci95=None),
        paired(pairs=(), ci95=(float("nan"), 1.0)),
    ],
)
def test_what_cannot_be_drawn_is_not(metric):
    assert evidence.pictures(runs.result(metrics=[metric])) == []


def test_one_value_and_hostile_names_are_drawn_as_text():
    drawn = picture(paired(name=f"kernel {runs.HOSTILE}", pairs=((1.0, 1.0),), ci95=None, limit=None))
    assert "<img" not in drawn.svg
    assert len(dots(drawn.svg)) == 1
