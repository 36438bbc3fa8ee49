"""Points: kinds of factors, configurations and their spread, CSV files good and bad."""

import math

import numpy as np
import pytest

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.points import Points, read_csv

ROWS = [
    ({"layers": 2.0, "batch": 4.0, "workers": 1.0}, 100.0),
    ({"layers": 2, "batch": 8, "workers": 1}, 150),
]


@pytest.mark.parametrize(
    "asked, kinds",
    [
        pytest.param({}, (("layers", "batch", "workers"), ()), id="none named"),
        pytest.param({"intrinsic": ["layers"]}, (("layers",), ("batch", "workers")), id="intrinsic named"),
        pytest.param({"extrinsic": ["batch"]}, (("layers", "workers"), ("batch",)), id="extrinsic named"),
        pytest.param({"intrinsic": ["layers"], "extrinsic": ["batch"]}, (("layers",), ("batch",)), id="both named"),
        pytest.param({"intrinsic": [], "extrinsic": ["batch"]}, ((), ("batch",)), id="no intrinsic"),
    ],
)
def test_factors_are_sorted_into_kinds(asked, kinds):
    points = Points.of(ROWS, **asked)
    assert (points.intrinsic, points.extrinsic) == kinds
    assert tuple(points.columns) == points.factors == kinds[0] + kinds[1]


def test_columns_hold_what_points_held():
    points = Points.of(ROWS, extrinsic=["batch"])
    assert points.columns["batch"].tolist() == [4, 8]
    assert points.ns.tolist() == [100, 150]
    assert points.varying == ("batch",)
    assert len(points) == 2


def test_replicates_are_one_configuration():
    points = Points.of([({"batch": size}, ns) for size, ns in [(4, 90), (8, 200), (4, 110), (16, 300)]])
    assert [rows.tolist() for rows in points.configurations()] == [[0, 2], [1], [3]]
    # (90, 110): deviations of 10 % each over one degree of freedom
    assert points.replicate_spread() == pytest.approx(math.sqrt(0.02))
    assert points.without(points.configurations()[0]).ns.tolist() == [200, 300]


def test_without_replicates_there_is_no_spread():
    assert Points.of(ROWS).replicate_spread() is None


@pytest.mark.parametrize(
    "factors, ns, problem",
    [
        pytest.param({"batch": math.nan}, 1, "factor batch is nan; it must be finite and not negative", id="nan"),
        pytest.param({"batch": -1}, 1, "factor batch is -1; it must be finite and not negative", id="negative"),
        pytest.param({"batch": math.inf}, 1, "factor batch is inf; it must be finite and not negative", id="infinite"),
        pytest.param({"layers": 1}, 1, "factor batch is missing", id="missing"),
        pytest.param({"batch": 0}, 0, "the time is 0 ns; it must be finite and positive", id="no time"),
        pytest.param({"batch": 1}, -5, "the time is -5 ns; it must be finite and positive", id="negative time"),
        pytest.param({"batch": 1}, math.nan, "the time is nan ns; it must be finite and positive", id="nan time"),
        pytest.param(
            {"batch": 1e-19},
            1,
            "factor batch is 1e-19; it must be 0 or at least 1e-18: choose a smaller unit",
            id="tiny",
        ),
        pytest.param({"batch": 1}, 1e19, "the time is 1e+19 ns; it must be from 1e-18 to 1e+18 ns", id="an eternity"),
        pytest.param({"batch": 1}, 1e-19, "the time is 1e-19 ns; it must be from 1e-18 to 1e+18 ns", id="no moment"),
    ],
)
def test_impossible_points_are_refused(factors, ns, problem):
    with pytest.raises(ScalingError) as caught:
        Points.of([({"batch": 1}, 1), (factors, ns)])
    assert str(caught.value) == f"point 2: {problem}"


@pytest.mark.parametrize(
    "rows, asked, problem",
    [
        pytest.param([], {}, "the input contains no points", id="no points"),
        pytest.param([({}, 1)], {}, "the input contains no factors", id="no factors"),
        pytest.param(
            ROWS, {"extrinsic": ["size"]}, "no factor 'size'; known factors: layers, batch, workers", id="unknown"
        ),
        pytest.param(ROWS, {"intrinsic": ["batch"], "extrinsic": ["batch"]}, "cannot be both", id="both kinds"),
    ],
)
def test_unclear_factors_are_refused(rows, asked, problem):
    with pytest.raises(ScalingError, match=problem):
        Points.of(rows, **asked)


def written(folder, text):
    path = folder / "points.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("unit, time", [("s", "0.25"), ("ms", "250"), ("us", "250e3"), ("ns", "250000000")])
def test_a_file_of_any_unit(tmp_path, unit, time):
    points = read_csv(written(tmp_path, f"batch,time_{unit},layers\n8,{time},3\n\n16,{time},3\n"), extrinsic=["batch"])
    np.testing.assert_allclose(points.ns, [250e6, 250e6], rtol=1e-15)
    assert points.columns["batch"].tolist() == [8, 16]
    assert (points.intrinsic, points.extrinsic) == (("layers",), ("batch",))


def test_byte_order_marks_and_spaces_do_not_matter(tmp_path):
    points = read_csv(written(tmp_path, "\ufeffbatch , time_s\r\n 8 , 1\r\n"))
    assert (points.factors, points.ns.tolist()) == (("batch",), [1e9])


def test_columns_left_out_may_hold_anything(tmp_path):
    path = written(tmp_path, "model,batch,time_s\nresnet,8,1\n")
    assert read_csv(path, intrinsic=[], extrinsic=["batch"]).factors == ("batch",)
    with pytest.raises(ScalingError, match=r"points\.csv:2: 'resnet' in column model is not a number$"):
        read_csv(path)


@pytest.mark.parametrize(
    "text, problem",
    [
        pytest.param("", ":1: the header needs exactly one of the columns time_s, ", id="empty"),
        pytest.param("batch,seconds\n1,2\n", ":1: the header needs exactly one", id="no time"),
        pytest.param("time_s,time_ms,batch\n", ":1: the header needs exactly one", id="two times"),
        pytest.param("batch,batch,time_s\n", ":1: column 'batch' appears twice", id="twice"),
        pytest.param("time_s\n1\n", ":1: the input contains no factors", id="no factor"),
        pytest.param("batch,time_s\n", ":1: the input contains no points", id="no rows"),
        pytest.param("batch,time_s\n1,2\n\n3\n", ":4: expected 2 values, as in the header, got 1", id="short line"),
        pytest.param("batch,time_s\n1,2\n3,x\n", ":3: 'x' in column time_s is not a number", id="no number"),
        pytest.param("batch,time_s\n1,nan\n", ":2: the time is nan ns; it must be finite and positive", id="nan"),
        pytest.param("batch,time_s\n-1,1\n", ":2: factor batch is -1; it must be", id="negative"),
        pytest.param('batch,time_s\n1,"2\n', ":2: unexpected end of data", id="open quote"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path, text, problem):
    path = written(tmp_path, text)
    with pytest.raises(ScalingError) as caught:
        read_csv(path)
    assert str(caught.value).startswith(f"{path}{problem}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ScalingError, match="cannot be read"):
        read_csv(tmp_path / "none.csv")
