import gzip
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_perfdl.model.errors import ReportError
from pytest_perfdl.report import html, traces, write_all
from pytest_perfdl.report.files import write_files
from pytest_perfdl.system.files import TEMPORARY
from unit.report import runs


def complete(tmp_path):
    (tmp_path / "exemplars").mkdir()
    regressed = runs.with_traces(runs.result("regressed"), tmp_path / "exemplars")
    return runs.run(regressed, runs.result("unchanged", "t.py::b"), root=tmp_path, report_dir=tmp_path / "perf-report")


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_report_folder(tmp_path):
    run = complete(tmp_path)
    written = write_all(run)
    stem = "test_train_step-bf16-0089055e"
    expected = [
        ".gitignore",
        "index.html",
        "run.json",
        "summary.md",
        *(f"traces/{stem}.{role}.json.gz" for role in ("base", "diff", "new")),
        f"traces/{stem}.speedscope.json",
    ]
    assert names(run.report_dir) == expected
    assert sorted([written.html, written.json, written.markdown, *written.traces]) == [
        run.report_dir / name for name in expected[1:]
    ]
    assert written.problems == ()
    (listed,) = json.loads(written.json.read_bytes())["tests"][0]["traces"]
    assert {listed[role] for role in ("base", "new", "diff", "speedscope")} == set(expected[4:])


DAMAGED = {
    "nan": gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "a", "ts": "NaN", "dur": 1}]}'),
    "infinity": gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "a", "ts": "Infinity", "dur": 1}]}'),
    "exponent": gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1e9999999, "dur": 1}]}'),
    "nested": gzip.compress(b'{"traceEvents": [{"ph": "X", "args": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}]}"),
    "bomb": gzip.compress(b'{"traceEvents": [' + b" " * 50_000_000 + b"]}"),
}


def test_an_older_report_is_replaced_and_strangers_stay(tmp_path):
    run = complete(tmp_path)
    write_all(run)
    (run.report_dir / "traces" / "mine.json.gz").write_bytes(b"mine")
    (run.report_dir / "notes.txt").write_text("mine")
    write_all(replace(run, results=run.results[1:]))
    assert names(run.report_dir) == [
        ".gitignore",
        "index.html",
        "notes.txt",
        "run.json",
        "summary.md",
        "traces/mine.json.gz",
    ]


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_git_ignores_the_report(tmp_path):
    git(tmp_path, "init", "--quiet")
    write_all(complete(tmp_path))
    git(tmp_path, "add", "--all")
    assert not [name for name in git(tmp_path, "ls-files").splitlines() if name.startswith("perf-report")]


@pytest.mark.parametrize("rules", [None, "!*\n"])
def test_a_folder_of_the_users_is_ignored_as_they_say(rules, tmp_path):
    run = complete(tmp_path)
    run.report_dir.mkdir()
    if rules is not None:
        (run.report_dir / ".gitignore").write_text(rules)
    write_all(run)
    write_all(run)
    found = run.report_dir / ".gitignore"
    assert (found.read_text() if found.exists() else None) == rules


def test_a_trace_that_cannot_be_read_is_a_problem_not_an_end(tmp_path):
    run = complete(tmp_path)
    (tmp_path / "exemplars" / "base.json.gz").write_bytes(b"not gzip")
    written = write_all(run)
    assert [path.name.split(".")[1] for path in written.traces] == ["new"]
    assert written.problems[0].startswith(f"{runs.GPT}: the baseline trace is left out: ")


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_picture_that_cannot_be_drawn_costs_nothing_else(tmp_path, text):
    run = complete(tmp_path)
    (tmp_path / "exemplars" / "base.json.gz").write_bytes(text)
    written = write_all(run)
    assert written.problems
    assert all("\n" not in problem for problem in written.problems)
    assert not any(".diff." in path.name or ".speedscope." in path.name for path in written.traces)
    assert {"index.html", "run.json", "summary.md"} <= set(names(run.report_dir))


def test_a_picture_that_fails_in_an_unforeseen_way_is_a_problem_too(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyError("unforeseen")

    monkeypatch.setattr(traces, "regression_trace", fail)
    written = write_all(complete(tmp_path))
    assert written.problems[0].endswith("baseline and current cannot be combined in one trace: KeyError: 'unforeseen'")
    assert [path.suffixes for path in written.traces][-1] == [".speedscope", ".json"]


def test_a_page_that_cannot_be_drawn_costs_neither_the_run_file_nor_the_truth(tmp_path, monkeypatch):
    run = complete(tmp_path)
    write_all(run)

    def fail(*_):
        raise KeyError("unforeseen")

    monkeypatch.setattr(html, "render", fail)
    with pytest.raises(
        ReportError, match=r"HTML report cannot be written: KeyError: 'unforeseen'; the measured data is in"
    ):
        write_all(replace(run, date="2027-01-01T00:00:00Z"))
    assert json.loads((run.report_dir / "run.json").read_bytes())["date"] == "2027-01-01T00:00:00Z"
    assert not {"index.html", "summary.md"} & set(names(run.report_dir)), "those were of an earlier run"


def test_hostile_names_reach_the_disk(tmp_path):
    written = write_all(runs.run(runs.hostile(), root=tmp_path, report_dir=tmp_path / "r"))
    for path in (written.html, written.json, written.markdown):
        path.read_text(encoding="utf-8")


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    run = complete(tmp_path)
    write_all(run)
    before = {name: (run.report_dir / name).read_bytes() for name in names(run.report_dir)}
    opened = Path.open
    calls = []

    def full(path, *arguments, **more):
        file = opened(path, *arguments, **more)
        if TEMPORARY.fullmatch(path.name):
            calls.append(path)
            if len(calls) == 4:
                file.write(b"half")
                file.close()
                raise OSError(28, "No space left on device")
        return file

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ReportError, match="No space left on device") as error:
        write_all(replace(run, date="2027-01-01T00:00:00Z"))
    assert "\n" not in str(error.value)
    after = {name: (run.report_dir / name).read_bytes() for name in names(run.report_dir)}
    # What was measured comes first, and whole.
    assert json.loads(after.pop("run.json"))["date"] == "2027-01-01T00:00:00Z"
    # The earlier run's pages would be taken for this one's.
    for name in ("run.json", "index.html", "summary.md"):
        del before[name]
    assert after == before


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportError, match=r"cannot be written: .*--perf-report"):
        write_all(runs.run(root=tmp_path, report_dir=tmp_path / "file" / "report"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ReportError, match="Permission denied"):
        write_files({tmp_path / "a": b""})


def test_a_place_taken_by_a_folder_leaves_no_temporary_file(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(ReportError):
        write_files({tmp_path / "b": b"new"})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize(
    "wanted, verdicts",
    [("regressed", ["regressed"]), ("all", ["regressed", "unchanged"]), ("none", [])],
    ids=["regressed", "all", "none"],
)
def test_traces_are_written_of_the_tests_that_are_wanted(tmp_path, wanted, verdicts):
    results = [
        runs.with_traces(runs.result(verdict, f"t.py::test_{verdict}"), tmp_path)
        for verdict in ("regressed", "unchanged")
    ]
    run = runs.run(*results, report_dir=tmp_path / "report", traces=wanted)
    shown = {path.name.split("-")[0] for path in write_all(run).traces}
    assert shown == {f"test_{verdict}" for verdict in verdicts}
    told = json.loads((tmp_path / "report" / "run.json").read_bytes())["tests"]
    assert [bool(test["traces"]) for test in told] == [f"test_{one.judgement.verdict}" in shown for one in results]
