"""`perfdl export`: which format goes where."""

import csv
import io
import json
from pathlib import Path

import pytest

from pytest_perfdl.cli import main
from pytest_perfdl.report import parquet
from unit.report.openmetrics_text import parsed

DATA = Path(__file__).resolve().parents[2] / "data"
RUN = DATA / "memory.json"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_bytes(RUN.read_bytes())
    return tmp_path


@pytest.mark.parametrize("run", ["run.json", "."])
def test_it_prints_openmetrics(run, folder, capsys):
    assert main(["export", run]) == 0
    families = parsed(capsys.readouterr().out)
    wanted = json.loads(RUN.read_bytes())["tests"][0]["metrics"]["step_time"]
    values = {dict(labels)["side"]: value for labels, value in families["perfdl_step_time_seconds"].samples.items()}
    assert values == {"baseline": wanted["base"] / 1e9, "current": wanted["new"] / 1e9}


def test_it_prints_csv(folder, capsys):
    assert main(["export", "run.json", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    wanted = json.loads(RUN.read_bytes())["tests"][0]["metrics"]
    assert [row["metric"] for row in rows] == list(wanted)
    assert [float(row["current"]) for row in rows] == [metric["new"] for metric in wanted.values()]


@pytest.mark.parametrize(
    "arguments, form",
    [
        (["-o", "a/b.csv"], "csv"),
        (["-o", "a/b.CSV"], "csv"),
        (["--out", "a/b.prom"], "openmetrics"),
        (["-o", "a/b.csv", "--format", "openmetrics"], "openmetrics"),
        (["-o", "a/b.txt", "--format", "csv"], "csv"),
    ],
)
def test_a_file_gets_what_is_printed(arguments, form, folder, capsys):
    assert main(["export", "run.json", "--format", form]) == 0
    printed = capsys.readouterr().out
    assert main(["export", "run.json", *arguments]) == 0
    assert capsys.readouterr().out == f"wrote {arguments[1]}\n"
    (file,) = (folder / "a").iterdir()
    assert file.read_text() == printed


def test_a_file_that_cannot_be_written_stays_as_it_was(folder, capsys):
    (folder / "out" / "inner").mkdir(parents=True)
    assert main(["export", "run.json", "-o", "out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "perfdl export: out cannot be written: Is a directory"
    assert sorted(path.name for path in folder.iterdir()) == ["out", "run.json"]


def test_every_recorded_run_is_openmetrics(capsys):
    for path in [*DATA.glob("*.json"), *DATA.glob("*/run.json"), DATA.parent / "browser" / "data" / "run.json"]:
        assert main(["export", str(path)]) == 0
        families = parsed(capsys.readouterr().out)
        assert {"perfdl_verdict", "perfdl_step_time_seconds", "perfdl_change_ratio"} <= set(families)


def test_parquet_needs_a_file_and_pyarrow(folder, capsys, monkeypatch):
    assert main(["export", "run.json", "--format", "parquet"]) == 2
    assert capsys.readouterr().err == "perfdl export: --format parquet is not text: name the file with --out FILE\n"
    monkeypatch.setattr(parquet, "find_spec", lambda name: None)
    assert main(["export", "run.json", "-o", "run.parquet"]) == 2
    assert capsys.readouterr().err == "perfdl export: --format parquet needs pyarrow: pip install pyarrow\n"
    assert not (folder / "run.parquet").exists()


def test_parquet_has_the_rows_of_the_csv_with_types(folder, capsys):
    table = pytest.importorskip("pyarrow.parquet")
    assert main(["export", "run.json", "-o", "run.parquet"]) == 0
    assert capsys.readouterr().out == "wrote run.parquet\n"
    rows = table.read_table(folder / "run.parquet").to_pylist()
    assert main(["export", "run.json", "--format", "csv"]) == 0
    plain = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == list(plain[0])
    assert len(rows) == len(plain)
    for row, texts in zip(rows, plain, strict=True):
        for name, text in texts.items():
            value = row[name]
            assert (value is None) == (text == ""), name
            if text:
                assert value == (text.lstrip("'") if isinstance(value, str) else float(text)), name
    assert isinstance(rows[0]["current"], float)
