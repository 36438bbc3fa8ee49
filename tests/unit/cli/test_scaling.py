"""`perfdl scaling`: the contract of its JSON, predictions from a saved model, plain words, refusals."""

import json
import os
from dataclasses import replace

import pytest
from making import record, timed

from pytest_perfdl.cli import main
from pytest_perfdl.model.record import Row
from pytest_perfdl.results.run_file import dump, to_json
from unit.report import runs

LINE = "batch,time_s\n" + "".join(f"{size},{0.012 + 0.001 * size}\n" for size in (2, 4, 8, 16, 32))
GRID = "layers,batch,workers,note,time_s\n" + "".join(
    f"{layers},{batch},{workers},any,{0.01 + 0.001 * layers * batch / workers}\n"
    for layers in (1, 2, 4)
    for batch in (2, 4, 8)
    for workers in (1, 2, 4)
)
KINDS = ("--intrinsic", "layers", "--extrinsic", "batch,workers")


@pytest.fixture
def points(tmp_path):
    def write(text):
        path = tmp_path / "points.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def call(capsys, *arguments, code=0):
    assert main(["scaling", *map(str, arguments)]) == code
    return capsys.readouterr()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    points, path = folder / "points.csv", folder / "model.json"
    points.write_text(GRID)
    assert main(["scaling", "fit", str(points), *KINDS, "--save", str(path)]) == 0
    return path


@pytest.fixture
def measured(tmp_path):
    """A run file of a step that is made of a product and of Python."""
    tests = []
    for size in (2, 4, 8, 16):
        rows = (Row("operator", "aten::mm\x1b[31m", 1, (100 * size**2,)), Row("idle", "Python", 0, (8000,)))
        series = {"step_time": timed(100 * size**2 + 8000)}
        test = f"test_a[batch={size}]"
        tests.append(record(series, rows=rows, test=test))
    return run_file(tmp_path, tests)


def run_file(folder, records):
    path = folder / "run.json"
    path.write_bytes(dump(to_json(runs.run(*(replace(runs.result(test=each.test), new=each) for each in records)))))
    return path


def test_parts_of_a_run_in_words(measured, capsys):
    said = call(capsys, "fit", measured, "--parts").out
    assert "Parts of the profiled step at batch 16 (33.60 µs), and how each grows (physical models)" in said
    table = [line.split() for line in said.split("how each grows")[1].splitlines()[2:-1]]
    assert [line[-7:] for line in table] == [
        ["25.60", "µs", "76.2%", "4.00x", "0", "ns", "0.0%"],
        ["8.000", "µs", "23.8%", "1.00x", "8.000", "µs", "0.0%"],
    ]
    assert table[1][:2] == ["Python,", "idle"]
    assert "\x1b" not in said
    assert "how each grows" not in call(capsys, "fit", measured).out


def test_parts_of_a_run_as_json(measured, capsys):
    found = json.loads(call(capsys, "fit", measured, "--parts", "--json").out)["parts"]
    assert (found["at"], found["profiled_step_s"], found["elsewhere"]) == ({"batch": 16}, pytest.approx(33.6e-6), 0)
    product, python = found["parts"]
    assert (product["kind"], python["name"]) == ("operator", "Python")
    assert (product["time_s"], product["share"]) == (pytest.approx(25.6e-6), pytest.approx(25.6 / 33.6))
    assert product["doubling"] == pytest.approx({"batch": 4})
    assert product["model"]["coefficients"]["per batch^2"]["value"] == pytest.approx(1e-7)
    assert "parts" not in json.loads(call(capsys, "fit", measured, "--json").out)


def test_a_table_of_times_has_no_parts(points, capsys):
    assert "--parts needs a run.json" in call(capsys, "fit", points(LINE), "--parts", code=2).err


def test_the_json_contract(points, capsys):
    found = json.loads(call(capsys, "fit", points(LINE), "--extrinsic", "batch", "--json").out)
    assert found["chosen"] == "affine"
    assert found["warnings"] == []
    assert all(isinstance(line, str) for line in found["explanation"])
    names = {each["name"] for each in found["models"]}
    assert names == {"affine", "physical", "generic product"}
    for each in found["models"]:
        assert 0 <= each["loo_mape"] < 0.01
        assert each["fit_seconds"] > 0
        for coefficient in each["coefficients"].values():
            low, high = coefficient["ci95"]
            assert low <= coefficient["value"] <= high
    (affine,) = (each for each in found["models"] if each["name"] == "affine")
    assert affine["coefficients"]["constant"]["value"] == pytest.approx(0.012)
    assert affine["coefficients"]["per batch"]["value"] == pytest.approx(0.001)
    assert affine["coefficients"]["per batch"]["unit"] == "s"


def test_what_json_prints_is_a_model_too(points, capsys, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(call(capsys, "fit", points(LINE), "--json").out)
    found = json.loads(call(capsys, "predict", path, "--at", "batch=10", "--json").out)
    assert found["time_s"] == pytest.approx(0.022)
    assert found["ci95_s"] == pytest.approx([0.022, 0.022])


def test_predictions_say_time_interval_and_plans(model, capsys):
    said = call(capsys, "predict", model, "--at", "layers=4,batch=8,workers=2", "--samples", "8e6", "--price", "3").out
    assert "layers 4, batch 8, workers 2: 26.00 ms  [" in said
    assert "(95% interval, physical)" in said
    assert "1,000,000 steps take 7.22 h" in said
    assert "and cost 21.67 [21.67, 21.67]" in said
    assert "speed-up  efficiency" in said
    assert "work per second  efficiency" in said
    assert "\nBest next measurement: layers " in said


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("{}", "--at", "layers=4", "--at", "batch=8,workers=2"), id="several"),
        pytest.param(("{}", "--batch", "8", "--workers", "2", "--layers=4"), id="options behind"),
        pytest.param(("--batch", "8", "--workers", "2", "--at", "layers=4", "{}"), id="options before"),
    ],
)
def test_a_configuration_may_be_written_in_ways(model, capsys, arguments):
    found = json.loads(call(capsys, "predict", *(each.format(model) for each in arguments), "--json").out)
    assert found["at"] == {"layers": 4, "batch": 8, "workers": 2}
    assert found["time_s"] == pytest.approx(0.026)
    assert [curve["axis"] for curve in found["curves"]] == ["workers", "batch"]
    assert found["epoch"] is None


def test_what_is_no_factor_is_no_option(model, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["scaling", "predict", str(model), "--batch", "many"])
    assert "unrecognized arguments: --batch many" in capsys.readouterr().err


def test_extrapolation_is_asked_for(model, capsys):
    at = ("--at", "layers=4,batch=64,workers=2")
    refused = call(capsys, "predict", model, *at, code=2).err
    assert refused.count("\n") == 1
    assert "batch 64 is outside the measured range 2 to 8 by more than 2x" in refused
    assert "--extrapolate" in refused
    said = call(capsys, "predict", model, *at, "--extrapolate").out
    warning = (
        "warning: batch 64 is outside the measured range 2 to 8: extrapolated; the interval is widened by a factor of 8"
    )
    assert warning in " ".join(said.split())


def test_another_model_may_be_asked(model, capsys):
    at = ("--at", "layers=4,batch=8,workers=2")
    found = json.loads(call(capsys, "predict", model, *at, "--model", "generic product", "--json").out)
    assert found["model"] == "generic product"
    assert "choose from physical, generic product" in call(capsys, "predict", model, *at, "--model", "x", code=2).err


def test_the_report_in_words(points, capsys):
    said = call(capsys, "fit", points(LINE)).out
    assert "5 points of 5 configurations: batch" in said
    assert "12.00 ms do not depend on size" in said
    assert "Coefficients of affine, 95% intervals (jackknife)" in said
    assert "affine *" in said


def test_a_curve_as_a_picture(model, capsys, tmp_path):
    path = tmp_path / "curve.svg"
    said = call(capsys, "predict", model, "--at", "layers=4,batch=8,workers=2", "--along", "batch", "--plot", path)
    assert said.err == f"wrote {path}\n"
    text = path.read_text()
    assert text.count("<circle") == 3
    assert "step time over batch" in text
    none = call(capsys, "predict", model, "--at", "layers=4,batch=8,workers=2", "--along", "", "--plot", path, code=2)
    assert "--plot needs a factor" in none.err


def test_points_of_a_run(tmp_path, capsys):
    sizes = (2, 4, 8)
    path = run_file(
        tmp_path,
        [record({"step_time": timed(1e7 + 1e6 * size)}, test=f"t.py::test_a[{size}]") for size in sizes],
    )
    found = json.loads(call(capsys, "fit", path, "--axes", "batch", "-k", "test_a", "--json").out)
    assert found["models"][0]["coefficients"]["constant"]["value"] == pytest.approx(0.01)


REFUSED = {
    "one point": ("batch,time_s\n2,1\n", "1 configuration measured, but at least 3 are needed"),
    "nan time": ("batch,time_s\n2,nan\n", "points.csv:2: the time is nan ns"),
    "negative time": ("batch,time_s\n2,-1\n", "points.csv:2: the time is -1e+09 ns; it must be finite and positive"),
    "nan factor": ("batch,time_s\nnan,1\n", "points.csv:2: factor batch is nan"),
    "huge factor": ("batch,time_s\n1e300,1\n", "points.csv:2: factor batch is 1e+300; it must be at most 1e+18"),
    "missing column": ("batch,time_s\n2\n", "points.csv:2: expected 2 values, as in the header, got 1"),
    "unnamed column": ("batch,,time_s\n2,3,4\n", "points.csv:1: column 2 has no name"),
    "no time": ("batch,seconds\n2,1\n", "points.csv:1: the header needs exactly one of the columns time_s"),
    "empty": ("", "points.csv:1: the header needs"),
    "only a header": ("batch,time_s\n", "points.csv:1: the input contains no points"),
    "not UTF-8": ("größe,time_s\n1,2\n".encode("latin-1"), "points.csv cannot be read: 'utf-8' codec"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_points_that_cannot_be_used_are_refused_in_one_line(name, points, capsys):
    text, problem = REFUSED[name]
    said = call(capsys, "fit", points(text), "--json", code=2)
    assert said.out == ""
    assert said.err.startswith("perfdl scaling: ")
    assert said.err.count("\n") == 1
    assert problem in said.err


def test_a_factor_that_is_not_there_is_refused(points, capsys):
    said = call(capsys, "fit", points(LINE), "--intrinsic", "layers", code=2).err
    assert "there is no factor 'layers'; known factors: batch" in said


@pytest.mark.parametrize(
    "text, warning",
    [
        pytest.param(
            "batch,time_s\n1,2\n2,2\n4,2\n8,2\n",
            "all measured times are equal, so no factor has an effect",
            id="constant",
        ),
        pytest.param(
            "batch,layers,time_s\n1,1,2\n2,2,3\n4,4,5\n8,8,9\n",
            "batch, layers vary together, so the effect of each cannot be separated",
            id="collinear",
        ),
        pytest.param(
            "batch,time_s\n1,1e-9\n10,1e-6\n100,1e-3\n1000,1\n", "times differ by a factor of 1e+09", id="spread"
        ),
        pytest.param("batch,time_s\n1,1e-9\n2,1\n3,2\n4,2.5\n", "no model fits the points well", id="nothing fits"),
    ],
)
def test_points_that_say_little_are_warned_of(text, warning, points, capsys):
    said = call(capsys, "fit", points(text), "--json")
    assert any(warning in each for each in json.loads(said.out)["warnings"])
    assert warning in said.err


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("--at", "batch"), "such as batch=64,workers=8"),
        (("--at", "batch=x"), "such as batch=64,workers=8"),
        (("--at", "batch=8,batch=4"), "--at sets batch twice: remove one value"),
        (("--at", "batch=8"), "the value of factor layers is missing"),
        (
            ("--at", "layers=4,batch=8,workers=2", "--price", "2"),
            "--price needs a number of steps or samples: add --steps or --samples",
        ),
        (("--at", "layers=4,batch=8,workers=2", "--steps", "2", "--samples", "3"), "cannot be combined"),
        (("--at", "layers=4,batch=8,workers=2", "--steps", "nan"), "steps must be a number above 0, not nan"),
        (("--at", "layers=4,batch=8,workers=2", "--along", "x"), "x does not vary"),
    ],
)
def test_predictions_that_cannot_be_made(model, capsys, arguments, problem):
    said = call(capsys, "predict", model, *arguments, code=2)
    assert problem in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"saved": {}}', b"\xff", b"[" * 100_000],
    ids=["empty", "list", "object", "saved", "binary", "deep"],
)
def test_what_is_no_model_is_refused(tmp_path, capsys, data):
    path = tmp_path / "model.json"
    path.write_bytes(data)
    assert call(capsys, "predict", path, "--at", "batch=8", code=2).err.count("\n") == 1


def test_a_model_that_is_not_there_is_refused(tmp_path, capsys):
    said = call(capsys, "predict", tmp_path / "model.json", "--at", "batch=8", code=2).err
    assert "cannot be read: No such file" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_model_that_cannot_be_written_is_said(points, tmp_path, capsys):
    (tmp_path / "shut").mkdir(mode=0o500)
    assert call(capsys, "fit", points(LINE), "--save", tmp_path / "shut" / "model.json", code=2).err
