"""Runs of a suite, made from a few words."""

from pytest_perfdl.runs.qualify import Case, Metric, Outcome


def case_of(verdict="unchanged", name="a.py::test_a", *, basis="paired", effect=0.0, compared=True, **metrics):
    held = metrics or {"step_time": (verdict, effect)}
    return Case(name, verdict, basis, compared, {key: Metric(*value) for key, value in held.items()})


def outcome(*cases, inject=0.0, seconds=10.0, arguments=(), key="cpu-1t", commit="0123456789abcdef"):
    return Outcome(inject, "2025-01-02T03:04:05Z", seconds, commit, key, tuple(arguments), cases or (case_of(),))


def run_file(*tests, key="cpu-1t", settings=(), context=()):
    """What pytest --perf-json writes, as far as it is read."""
    return {
        "date": "2025-01-02T03:04:05Z",
        "commit": None,
        "key": {"slug": key},
        "settings": dict(settings),
        "context": dict(context),
        "tests": list(tests),
    }


def case_in_file(verdict="unchanged", name="a.py::test_a", *, reason="", record=True, base=None, **metrics):
    return {
        "id": name,
        "verdict": verdict,
        "reason": reason,
        "record": {} if record else None,
        "base_record": None if base is None else {"occasions": [{"date": base}]},
        "metrics": metrics or {"step_time": metric(verdict)},
    }


def metric(verdict="unchanged", effect=0.01, *, evidence=None, limit="3%", kind="timed"):
    return {"kind": kind, "verdict": verdict, "effect": effect, "limit": limit, "evidence": evidence}
