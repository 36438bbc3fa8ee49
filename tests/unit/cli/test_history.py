"""`perfdl history`: what it reads, prints and writes, exit codes and wrong input."""

import csv
import io
import json

import pytest

from pytest_perfdl.cli import main
from unit.runs.history.records import TEST, Repository, paired, record, run_file, write
from unit.test_schemas import check


def printed(text):
    """The output of `--json`, which fits its schema."""
    data = json.loads(text)
    check("history", data)
    return data


@pytest.fixture
def repository(tmp_path, monkeypatch):
    made = Repository(tmp_path / "repository")
    for number in range(12):
        made.commit(f"Commit {number}", record(4e7 * (1.002 if number % 2 else 1) * (1.08 if number >= 7 else 1)))
    monkeypatch.chdir(made.project)
    return made


def test_the_history_of_committed_baselines(repository, capsys):
    assert main(["history", "test_step"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == TEST
    assert "12 points" in lines[1]
    changed = repository.git("log", "--format=%h", "--abbrev=9", "--grep=Commit 7")
    (line,) = [line for line in lines if line.startswith("    ^ ")]
    assert line.startswith(f"    ^ {changed} 20")
    assert "(worse), probability >99.9%: Commit 7" in line
    assert shown.err == ""


def test_json_is_all_that_is_printed(repository, capsys):
    assert main(["history", "--json", "--metric", "all", "--csv", "all.csv"]) == 0
    shown = capsys.readouterr()
    data = printed(shown.out)
    assert shown.err == "wrote all.csv\n"
    assert [each["metric"] for each in data["tests"]] == ["ops", "step_time"]
    (change,) = data["tests"][1]["change_points"]
    assert change["commit"] == data["tests"][1]["points"][7]["commit"]
    assert change["effect"] == pytest.approx(0.08, abs=0.01)
    rows = list(csv.DictReader(io.StringIO((repository.root / "all.csv").read_text())))
    assert [float(row["value"]) for row in rows[12:]] == [each["value"] for each in data["tests"][1]["points"]]


def test_csv_goes_to_standard_output(repository, capsys):
    assert main(["history", "--csv", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 12


def test_the_page_is_written(repository, capsys):
    assert main(["history", "--html", "a/history.html"]) == 0
    assert capsys.readouterr().err == "wrote a/history.html\n"
    assert "<circle" in (repository.root / "a" / "history.html").read_text()


def test_run_files_with_rounds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base = record(4e7)
    for number, effect in enumerate((0.0, 0.01, 0.0)):
        write(
            tmp_path / "nights",
            **{f"n{number}": run_file(date=f"2026-06-0{number + 1}", base=base, paired=paired(effect))},
        )
    assert main(["history", "test_step", "--runs", "nights/n0.json", "nights/n1.json", "nights/n2.json"]) == 0
    first = capsys.readouterr().out
    assert "40.00 ms, 3 points" in first
    assert main(["history", "--runs", "nights", "--json"]) == 0
    points = printed(capsys.readouterr().out)["tests"][0]["points"]
    assert [point["paired"] for point in points] == [True] * 3
    assert points[1]["value"] / points[0]["value"] == pytest.approx(1.01)


def test_files_that_cannot_be_used_are_named_and_the_rest_shown(repository, capsys):
    repository.path(record()).write_text("{")
    repository.git("commit", "-aqm", "Damaged")
    assert main(["history", "--json"]) == 0
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith("perfdl history: ")
    assert printed(shown.out)["skipped"] == [line.removeprefix("perfdl history: ")]


@pytest.mark.parametrize("words", [["nothing"], ["--metric", "nothing"]])
def test_nothing_to_show(words, repository, capsys):
    assert main(["history", *words]) == 3
    shown = capsys.readouterr()
    assert shown.out.startswith("nothing to show: no commit has a baseline in baselines ")
    assert main(["history", *words, "--json"]) == 3
    assert capsys.readouterr().out == ""


def test_nothing_in_run_files(tmp_path, capsys):
    write(tmp_path, run=run_file())
    assert main(["history", "other", "--runs", str(tmp_path)]) == 3
    assert capsys.readouterr().out == (
        "nothing to show: no run file has a measurement of a test whose id contains 'other'\n"
    )


@pytest.mark.parametrize(
    "words, why",
    [
        (["run.json"], "run.json is no test: name run files with perfdl history --runs PLACE"),
        (["s3://bucket/runs"], "s3://bucket/runs is no test: name run files with perfdl history --runs PLACE"),
        (["--runs", "nowhere"], "there is no run file or folder nowhere (TEST comes before --runs)"),
        (["--json", "--csv", "-"], "--json and --csv - both print to standard output: write the CSV to a file"),
        (["--html", "."], ". cannot be written: "),
    ],
)
def test_wrong_usage(words, why, repository, capsys):
    assert main(["history", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith(f"perfdl history: {why}")


def test_a_terminal_without_blocks(repository, capfd, monkeypatch):
    from pytest_perfdl.cli import history

    monkeypatch.setattr(history, "_can_say", lambda _text: False)
    assert main(["history"]) == 0
    assert capfd.readouterr().out.isascii()
