"""What is kept of a run file."""

import pytest

from pytest_perfdl.model.errors import OutcomeError
from pytest_perfdl.runs.bisect.measurements import Request, measurement_of

REQUEST = Request("a" * 40, "b" * 40, timed=True)


def metric(kind="timed", *, base=(), new=(), evidence="paired", **more):
    return {"kind": kind, "base_values": list(base), "new_values": list(new), "evidence": evidence, **more}


def run_of(**metrics):
    test = {"metrics": metrics, "reason": "not measured: the test itself failed", "blame": [], "source_diffs": []}
    return {"key": {"slug": "machine"}, "tests": [test]}


def test_counts_and_rounds():
    run = run_of(
        ops=metric("counted", evidence=None, base=(), new=()) | {"base": 16.0, "new": 18.0},
        growth=metric("counted", evidence=None) | {"base": None, "new": 8.0},
        step_time=metric(base=[100, 100], new=[110, 121]),
        throughput=metric(base=[10.0], new=[5.0]),
        data_wait=metric(base=[0, 5], new=[5, 5]),
        mfu=metric(base=[1.0], new=[2.0]),
        step_p50=metric(evidence=None, new=[5]),
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
    assert measurement_of({"tests": []}, REQUEST).skipped == "no perf test was measured"
    several = measurement_of({"tests": [{"id": "a"}, {"id": "b"}]}, REQUEST)
    assert several.skipped == "it is 2 perf tests (a, b): name one of them"


@pytest.mark.parametrize("run", [{}, {"tests": [1, 2]}, {"tests": [{"metrics": {"ops": {}}}]}, []])
def test_what_is_no_run_file_of_one_test(run):
    with pytest.raises(OutcomeError, match="is not of one perf test"):
        measurement_of(run, REQUEST)
