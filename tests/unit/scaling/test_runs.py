"""Points out of run files: sizes are told by the ids of tests."""

import json

import pytest
from making import CONTEXT, record, timed

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.record import Key, MeasurementPlan
from pytest_perfdl.model.record_json import to_json
from pytest_perfdl.scaling import read_run, sizes_of


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
    return {"id": nodeid, "record": to_json(record({"step_time": timed(*values)}, test=nodeid, **more))}


def run(path, *tests):
    path.write_text(json.dumps({"schema": 1, "tests": tests}))
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.json"


def test_every_repeat_is_a_point(path):
    run(
        path,
        measured("test_a[batch=2]", 2e6, 2.1e6),
        measured("test_a[batch=4]", 4e6, 4.1e6),
        {"id": "skipped", "record": None},
    )
    points = read_run(path, extrinsic=["batch"])
    assert points.columns["batch"].tolist() == [2, 2, 4, 4]
    assert points.ns.tolist() == [2e6, 2.1e6, 4e6, 4.1e6]
    assert points.extrinsic == ("batch",)


@pytest.mark.parametrize(
    "other, said",
    [
        ({"key": Key("other", {"cpu": "Xeon", "threads": 1})}, "cpu EPYC, but test_a[batch=4] with Xeon"),
        ({"context": {**CONTEXT, "torch": "2.14.0"}}, "torch 2.13.0, but test_a[batch=4] with 2.14.0"),
    ],
    ids=["machine", "torch"],
)
def test_sizes_that_differ_in_more_than_their_size_make_no_curve(other, said, path):
    run(path, measured("test_a[batch=2]", 2e6), measured("test_a[batch=4]", 4e6, **other))
    with pytest.raises(ScalingError) as refused:
        read_run(path)
    assert str(refused.value) == f"{path}: test_a[batch=2] was measured with {said}"


def test_threads_may_be_what_is_scaled(path):
    more = {"plan": MeasurementPlan(15, 40, threads=2), "context": {**CONTEXT, "threads": 2}}
    run(path, measured("test_a[threads=1]", 2e6), measured("test_a[threads=2]", 1e6, **more))
    assert len(read_run(path)) == 2


def test_one_of_several_tests_is_chosen(path):
    run(path, *(measured(f"test_{name}[{size}]", size * 1e6) for name in "ab" for size in (2, 4)))
    assert len(read_run(path, test="test_b", names=["batch"])) == 2
    with pytest.raises(
        ScalingError, match=r"run.json: several tests have sizes in their ids: select one with -k: test_a, test_b"
    ):
        read_run(path, names=["batch"])


@pytest.mark.parametrize(
    "text, problem",
    [
        pytest.param("", "is not JSON", id="empty"),
        pytest.param("[]", "is not a run file", id="list"),
        pytest.param('{"tests": []}', "it has no schema number", id="no schema"),
        pytest.param('{"schema": 1, "tests": [{}]}', "is damaged: tests.0. is malformed", id="no id"),
        pytest.param(
            '{"schema": 1, "tests": [{"id": "a", "record": {"schema": 1}}]}',
            "tests.0. has a record that is malformed",
            id="broken record",
        ),
        pytest.param('{"schema": 1, "tests": []}', "no test has sizes in its id", id="no tests"),
    ],
)
def test_other_files_are_refused(path, text, problem):
    path.write_text(text)
    with pytest.raises(ScalingError, match=problem):
        read_run(path)


def test_files_that_are_not_there_are_refused(path):
    with pytest.raises(ScalingError, match=r"run.json: cannot be read: No such file"):
        read_run(path)


@pytest.mark.parametrize(
    "metric, problem",
    [
        ("step", r"test_a\[batch=2\] has no metric step; available metrics: ops, step_time"),
        ("ops", "ops is in '1', not a time"),
    ],
    ids=["unknown", "no time"],
)
def test_other_metrics_are_refused(path, metric, problem):
    series = {"step_time": timed(1e6), "ops": timed(3, unit="1")}
    run(path, {"id": "test_a[batch=2]", "record": to_json(record(series, test="test_a[batch=2]"))})
    with pytest.raises(ScalingError, match=problem):
        read_run(path, metric=metric)
