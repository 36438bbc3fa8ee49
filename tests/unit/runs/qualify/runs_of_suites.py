"""Runs of a suite, made from a few words."""

from dataclasses import replace
from pathlib import Path

from pytest_perfdl.model.record import Key
from pytest_perfdl.results.run import Run
from pytest_perfdl.runs.qualify import Case, Metric, Outcome
from unit.report import runs


def case_of(verdict="unchanged", name="a.py::test_a", *, basis="paired", effect=0.0, compared=True, **metrics):
    held = metrics or {"step_time": (verdict, effect)}
    return Case(name, verdict, basis, compared, {key: Metric(*value) for key, value in held.items()})


def outcome(*cases, inject=0.0, seconds=10.0, arguments=(), key="cpu-1t", commit="0123456789abcdef"):
    return Outcome(inject, "2025-01-02T03:04:05Z", seconds, commit, key, tuple(arguments), cases or (case_of(),))


def run_of(*results, key="cpu-1t", settings=(), context=()):
    return Run(
        root=Path("/"),
        key=Key(key, {}),
        context=dict(context),
        results=results,
        perf_dir="baselines",
        report_dir=Path("/report"),
        date="2025-01-02T03:04:05Z",
        settings=dict(settings),
    )


def result_of(verdict="unchanged", name="a.py::test_a", *, reason="", record=True, base=None, **metrics):
    stored = runs.record(name)
    stored = replace(stored, occasions=(replace(stored.occasions[0], date=base),))
    return runs.result(
        verdict,
        name,
        reason=reason,
        metrics=[made(name) for name, made in (metrics or {"step_time": metric(verdict)}).items()],
        new=runs.record(name) if record else None,
        base=None if base is None else stored,
    )


def metric(verdict="unchanged", effect=0.01, *, evidence=None, limit="3%", kind="timed"):
    """Makes a metric, given its name."""
    more = {"effect": effect, "verdict": verdict, "evidence": evidence}
    unit = "ns" if kind == "timed" else "1"
    return lambda name: runs.with_limit(
        name, limit=limit, kind=kind, unit=unit, better="lower", base=1.0, new=1.0, **more
    )
