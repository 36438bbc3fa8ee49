"""What is kept of a run."""

import pytest

from pytest_perfdl.model.record import Key
from pytest_perfdl.results.verdict import MetricVerdict
from pytest_perfdl.runs.bisect.measurements import Request, measurement_of
from unit.report import runs

REQUEST = Request("a" * 40, "b" * 40, timed=True)


def counted(name, base, new):
    return MetricVerdict(name, "counted", "1", "lower", base, new)


def timed(name, *pairs, better="lower"):
    return MetricVerdict(name, "timed", "ns", better, 1.0, 1.0, pairs=pairs)


def run_of(*metrics):
    result = runs.result(metrics=metrics, reason="not measured: the test itself failed")
    return runs.run(result, key=Key("machine", {}))


def test_counts_and_rounds():
    run = run_of(
        counted("ops", 16.0, 18.0),
        counted("growth", None, 8.0),
        timed("step_time", (100, 110), (100, 121)),
        timed("throughput", (10.0, 5.0), better="higher"),
        timed("data_wait", (0, 5), (5, 5)),
        timed("mfu", (1.0, 2.0), better="higher"),
        timed("step_p50"),
    )
    found = measurement_of(run, REQUEST)
    assert (found.counts, found.base_counts) == ({"ops": 18.0, "growth": 8.0}, {"ops": 16.0})
    assert found.rounds.keys() == {"step_time", "throughput"}
    assert found.differences("step_time") == pytest.approx([0.0953, 0.1906], abs=1e-4)
    assert found.differences("throughput") == pytest.approx([0.6931], abs=1e-4), "less is worse"
    assert found.differences("kernel_time") == ()


def test_a_test_that_was_not_measured():
    assert measurement_of(run_of(), REQUEST).skipped == "not measured: the test itself failed"


def test_no_test_and_several():
    assert measurement_of(runs.run(), REQUEST).skipped == "no perf test was measured"
    several = measurement_of(runs.run(runs.result(test="a"), runs.result(test="b")), REQUEST)
    assert several.skipped == "it is 2 perf tests (a, b): name one of them"
