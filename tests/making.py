"""Records for tests: made from a few numbers, valid in every other part."""

from pytest_perfdl.model.record import Call, Finding, Key, MeasurementPlan, Occasion, Record, Row, Series

COMMIT, TREE = "3f2c1ab" * 5 + "3f2c1", "9d8e7f" * 6 + "9d8e"
TEST = "tests/perf/test_gpt.py::test_step[bf16]"
CONTEXT = {"torch": "2.13.0", "flags": "", "device": "cpu", "threads": 1, "cpu_capability": "AVX2", "driver": None}


def timed(*values, better="lower", unit="ns"):
    return Series("timed", unit, better, values)


def counted(*values, unit="1", better="lower"):
    return Series("counted", unit, better, values)


def rows(**named):
    """Operators by name: (count, ns...) each."""
    return tuple(Row("operator", name, count, ns) for name, (count, *ns) in named.items() for ns in [tuple(ns)])


def record(series=None, *, rows=(), calls=None, repeats=None, profiled=None, **rest):
    """A record with one unnamed call of these series, or with the calls given."""
    if calls is None:
        series = {"step_time": timed(1e6)} if series is None else series
        if repeats is None:
            repeats = len(next(iter(series.values())).values) if series else len(rows[0].ns) if rows else 1
        profiled = profiled or tuple(max(1, sum(row.ns[i] for row in rows)) for i in range(repeats))
        calls = (Call("", series, tuple(rows), profiled),)
    elif repeats is None:
        repeats = len(calls[0].profiled_ns) if calls else 1
    values = {
        "test": TEST,
        "key": Key("cpu-epyc-8c-1t", {"cpu": "EPYC", "threads": 1, "accelerator": None}),
        "context": CONTEXT,
        "test_hash": "abc123",
        "plan": MeasurementPlan(warmup=15, steps=40),
        "calls": calls,
        "occasions": (Occasion(repeats, "2026-05-01T10:00:00Z", COMMIT, TREE),),
    }
    return Record(**{**values, **rest})


def invalid(message="it broke"):
    return Finding("invalid", "broken", message)
