"""`perfdl export`: which format goes where."""

import csv
import io
import json
from pathlib import Path

import pytest

from pytest_perfdl.cli import main
from pytest_perfdl.report import exports

DATA = Path(__file__).resolve().parents[2] / "data"
RUN = DATA / "memory.json"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_bytes(RUN.read_bytes())
    return tmp_path


@pytest.mark.parametrize("arguments", [["run.json"], ["."], ["run.json", "--format", "csv"]])
def test_it_prints_csv(arguments, folder, capsys):
    assert main(["export", *arguments]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    wanted = json.loads(RUN.read_bytes())["tests"][0]["metrics"]
    assert [row["metric"] for row in rows] == list(wanted)
    assert [float(row["current"]) for row in rows] == [metric["new"] for metric in wanted.values()]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "a/b.csv"],
        ["-o", "a/b.CSV"],
        ["--out", "a/b.txt"],
        ["-o", "a/b.parquet", "--format", "csv"],
    ],
)
def test_a_file_gets_what_is_printed(arguments, folder, capsys):
    assert main(["export", "run.json"]) == 0
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


def test_every_recorded_run_is_exported(capsys):
    for path in [*DATA.glob("*.json"), *DATA.glob("*/run.json"), DATA.parent / "browser" / "data" / "run.json"]:
        assert main(["export", str(path)]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert "step_time" in {row["metric"] for row in rows}


def test_parquet_needs_a_file_and_pyarrow(folder, capsys, monkeypatch):
    assert main(["export", "run.json", "--format", "parquet"]) == 2
    assert capsys.readouterr().err == "perfdl export: --format parquet is not text: name the file with --out FILE\n"
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
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
