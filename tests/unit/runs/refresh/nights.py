"""Nightly runs of one test as run files hold them: rounds with a known change, and what the gate would say of it."""

import random
from dataclasses import replace
from pathlib import Path

from making import COMMIT, CONTEXT, counted, record, timed

from pytest_perfdl.model.limits import Limit
from pytest_perfdl.model.record import Code
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import Judgement, MetricVerdict
from pytest_perfdl.runs.refresh import Measured

TEST = "tests/perf/test_gpt.py::test_step"
BASE_NS = 10_000_000
OLD, NEW = (Code({"src/gpt.py": digit * 12}, {"numpy": "2.0.0"}) for digit in "01")
UPGRADED = {**CONTEXT, "torch": "2.14.0"}


def of(factor=1.0, *, code=OLD, context=CONTEXT, night=0, memory=1_000_000_000, repeats=1, **rest):
    """A record of code that takes this times as long as the first one."""
    values = tuple(round(BASE_NS * factor) + number for number in range(repeats))
    made = record(
        {"step_time": timed(*values), "peak_memory": counted(*(memory,) * repeats, unit="B")},
        test=TEST,
        context=context,
        code=code,
        **rest,
    )
    return replace(made, occasions=(replace(made.occasions[0], date=date(night), commit=COMMIT),))


def date(night):
    return f"2026-05-{night + 1:02}T02:00:00Z"


STORED = of(repeats=10)


def metric(change, verdict, *, name="step_time", rounds=8, noise=0.004, seed=0, environment=1.0, **rest):
    """A time in rounds whose true change is known."""
    draw = random.Random(f"{name}{change}{seed}")
    pairs = tuple(
        (round(base), round(base * (1 + change) * (1 + draw.gauss(0, noise))))
        for base in (BASE_NS * environment * (1 + draw.gauss(0, 0.01)) for _ in range(rounds))
    )
    values = {
        "base": BASE_NS * environment,
        "new": BASE_NS * environment * (1 + change),
        "effect": change,
        "ci95": (change - 0.004, change + 0.004),
        "limit": Limit("3%", 0.03),
        "verdict": verdict,
        "reason": f"{change:+.1%}",
        "evidence": "paired",
        "rounds": rounds,
        "pairs": pairs,
    }
    return MetricVerdict(name, "timed", "ns", "lower", **{**values, **rest})


def night(number, change=0.0, verdict=None, *, stored=STORED, metrics=None, code=NEW, context=CONTEXT, **rest):
    """One run: the current code takes `1 + change` times as long as the baseline's."""
    verdict = verdict or ("improved" if change < -0.03 else "regressed" if change > 0.03 else "unchanged")
    environment = rest.pop("environment", 1.0)
    new = rest.pop("new", None) or of((1 + change) * environment, code=code, context=context, night=number)
    now = None
    if stored is not None and context != stored.context:
        now = rest.pop("base_now", None) or of(environment, code=None, context=context, night=number)
    found = (metric(change, verdict, seed=number, environment=environment),) if metrics is None else metrics
    changes = tuple(
        (name, str(stored.context[name]), str(context[name]))
        for name in context
        if stored is not None and stored.context[name] != context[name]
    )
    judgement = Judgement(
        TEST,
        verdict,
        rest.pop("reason", f"step_time {change:+.1%}"),
        metrics=tuple(found),
        integrity=rest.pop("integrity", ()),
        environment=rest.pop("judged_environment", ()),
        context_changes=changes,
    )
    result = Result(TEST, "tests/perf/test_gpt.py", 12, judgement, verdict == "regressed", new=new, base=stored)
    return Measured(Path(f"night-{number}/run.json"), date(number), replace(result, base_now=now, **rest))
