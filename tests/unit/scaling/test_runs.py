"""Points out of runs: sizes are told by the ids of tests."""

import pytest
from making import CONTEXT, record, timed

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.record import Key, MeasurementPlan
from pytest_perfdl.scaling.points import members_of, points_of, sizes_of


@pytest.mark.parametrize(
    "nodeid, names, family, sizes",
    [
        pytest.param("t.py::test_a", [], "t.py::test_a", {}, id="no parameters"),
        pytest.param("t.py::test_a[batch=8]", [], "t.py::test_a", {"batch": 8}, id="named"),
        pytest.param("test_a[batch=8-workers=2]", [], "test_a", {"batch": 8, "workers": 2}, id="two"),
        pytest.param("test_a[bf16-batch=8]", [], "test_a[bf16]", {"batch": 8}, id="another parameter before"),
        pytest.param("test_a[batch=8-bf16]", [], "test_a[bf16]", {"batch": 8}, id="another parameter behind"),
        pytest.param("test_a[rate=1e-05-batch=0.5]", [], "test_a", {"rate": 1e-5, "batch": 0.5}, id="exponent"),
        pytest.param("test_a[8-2]", [], "test_a[8-2]", {}, id="bare"),
        pytest.param("test_a[8-2]", ["batch"], "test_a[2]", {"batch": 8}, id="one name"),
        pytest.param("test_a[8-2]", ["batch", "workers"], "test_a", {"batch": 8, "workers": 2}, id="two names"),
        pytest.param("test_a[8x2-4]", ["batch"], "test_a[8x2]", {"batch": 4}, id="no number"),
        pytest.param("test_a[]", [], "test_a", {}, id="empty"),
    ],
)
def test_sizes_of_ids(nodeid, names, family, sizes):
    assert sizes_of(nodeid, names) == (family, sizes)


def measured(nodeid, *values, **more):
    return record({"step_time": timed(*values)}, test=nodeid, **more)


def points(*records, test="", names=(), **more):
    return points_of(members_of(records, test=test, names=names), **more)


def test_every_repeat_is_a_point():
    found = points(
        measured("test_a[batch=2]", 2e6, 2.1e6), measured("test_a[batch=4]", 4e6, 4.1e6), extrinsic=["batch"]
    )
    assert found.columns["batch"].tolist() == [2, 2, 4, 4]
    assert found.ns.tolist() == [2e6, 2.1e6, 4e6, 4.1e6]
    assert found.extrinsic == ("batch",)


@pytest.mark.parametrize(
    "other, said",
    [
        ({"key": Key("other", {"cpu": "Xeon", "threads": 1})}, "cpu EPYC, but test_a[batch=4] with Xeon"),
        ({"context": {**CONTEXT, "torch": "2.14.0"}}, "torch 2.13.0, but test_a[batch=4] with 2.14.0"),
    ],
    ids=["machine", "torch"],
)
def test_sizes_that_differ_in_more_than_their_size_make_no_curve(other, said):
    with pytest.raises(ScalingError) as refused:
        points(measured("test_a[batch=2]", 2e6), measured("test_a[batch=4]", 4e6, **other))
    assert str(refused.value) == f"test_a[batch=2] was measured with {said}"


def test_threads_may_be_what_is_scaled():
    more = {"plan": MeasurementPlan(15, 40, threads=2), "context": {**CONTEXT, "threads": 2}}
    assert len(points(measured("test_a[threads=1]", 2e6), measured("test_a[threads=2]", 1e6, **more))) == 2


def test_one_of_several_tests_is_chosen():
    records = [measured(f"test_{name}[{size}]", size * 1e6) for name in "ab" for size in (2, 4)]
    assert len(points(*records, test="test_b", names=["batch"])) == 2
    with pytest.raises(
        ScalingError, match=r"several tests have sizes in their ids: select one with -k: test_a, test_b"
    ):
        points(*records, names=["batch"])


def test_tests_without_sizes_are_refused():
    with pytest.raises(ScalingError, match=r"^no test has sizes in its id"):
        points(measured("test_a", 1e6))


@pytest.mark.parametrize(
    "metric, problem",
    [
        ("step", r"test_a\[batch=2\] has no metric step; available metrics: ops, step_time"),
        ("ops", "ops is in '1', not a time"),
    ],
    ids=["unknown", "no time"],
)
def test_other_metrics_are_refused(metric, problem):
    series = {"step_time": timed(1e6), "ops": timed(3, unit="1")}
    with pytest.raises(ScalingError, match=problem):
        points(record(series, test="test_a[batch=2]"), metric=metric)
