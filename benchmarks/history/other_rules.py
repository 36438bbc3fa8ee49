"""How other projects' nightly gates keep their baselines, as functions of one test's time in every night.

Each rule sees one number a night, since none of these projects measures an older commit again, and gives for each night
whether it reports a slowdown and the time that it compares the night with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Rule = Callable[[Sequence[float]], tuple[list[bool], list[float]]]
"""Times of the nights -> (a slowdown is reported, baseline) of each night."""


def fastvideo(values: Sequence[float], last: int = 5, limit: float = 0.05) -> tuple[list[bool], list[float]]:
    """FastVideo: slower than the mean of the last five runs by 5 % (github.com/hao-ai-lab/FastVideo/pull/1248).

    Every run joins the history, whether it fails or not.
    """
    bases = [float(np.mean(values[max(0, night - last) : night] or values[:1])) for night in range(len(values))]
    return [value > base * (1 + limit) for value, base in zip(values, bases, strict=True)], bases


def tensorrt_llm(values: Sequence[float], window: int = 3, limit: float = 0.05) -> tuple[list[bool], list[float]]:
    """TensorRT-LLM: slower by 5 % than the best of the rolling mean (its P95, here of a time: the 5th percentile).

    `tests/integration/defs/perf/open_search_db_utils.py` (`POST_MERGE_THRESHOLD`, `query_history_data`): 90 days of
    runs that are not marked as regressions. Where main has regressed already, the gate is left out (pull request
    18766), and what ran meanwhile counts as passed. The window of the mean is our assumption.
    """
    history: list[float] = []
    alarms, bases, regressed = [], [], False
    for value in values:
        means = [float(np.mean(history[max(0, at - window + 1) : at + 1])) for at in range(len(history))]
        base = float(np.percentile(means, 5)) if means else value
        over = value > base * (1 + limit)
        alarms.append(over and not regressed)
        if not alarms[-1]:
            history.append(value)
        regressed = over
        bases.append(base)
    return alarms, bases


def pytorch_hud(values: Sequence[float], limit: float = 0.20) -> tuple[list[bool], list[float]]:
    """PyTorch's HUD: slower by 20 % in two nights than in the night before them."""
    bases = [values[max(0, night - 2)] for night in range(len(values))]
    over = [
        night >= 2 and min(values[night - 1], values[night]) > bases[night] * (1 + limit)
        for night in range(len(values))
    ]
    return over, bases


RULES: dict[str, Rule] = {
    "TensorRT-LLM: P95 of the rolling mean, 5 %, exemption": tensorrt_llm,
    "FastVideo: mean of the last five, 5 %": fastvideo,
    "PyTorch HUD: 20 %, two nights": pytorch_hud,
}
