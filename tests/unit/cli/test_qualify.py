"""`perfdl qualify`: which runs are made, what is printed, and with which code it ends."""

import json
from dataclasses import replace

import pytest

from pytest_perfdl.cli import main, qualify
from pytest_perfdl.model.errors import RunFailed
from pytest_perfdl.runs.qualify import Case, Metric, Outcome, log

NAMES = ("a.py::test_a", "b.py::test_b")


def outcome(inject, arguments=(), *, key="cpu-1t", seconds=10.0):
    """A suite in which everything past 4 % is found, and nothing else."""
    verdict = "regressed" if inject > 0.04 else "unchanged"
    metrics = {"step_time": Metric(verdict, inject or 0.002)}
    tests = tuple(Case(name, verdict, "paired" if inject else "unpaired", True, metrics) for name in NAMES)
    return Outcome(inject, "2025-01-02T03:04:05Z", seconds, "0123456789abcdef", key, tuple(arguments), tests)


@pytest.fixture
def suite(monkeypatch, tmp_path):
    """A suite that is not run; the list of runs that were asked for, and what happens in them."""
    monkeypatch.chdir(tmp_path)
    asked = []
    happens = {}

    def run_suite(arguments, share, *, first, folder):
        asked.append((share, first, folder))
        if len(asked) in happens:
            raise happens[len(asked)]
        found = outcome(share, arguments, key=happens.get("key", "cpu-1t"))
        return replace(found, settings=happens.get("settings", {}))

    monkeypatch.setattr(qualify, "run_suite", run_suite)
    return asked, happens


SMALL = ("-n", "2", "-m", "1", "--effects", "3,5")


def test_the_page(suite, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["qualify", *SMALL, "-m", "2"]) == 0
    shown = capsys.readouterr()

    assert shown.out.splitlines() == [
        "6 runs on machine cpu-1t at commit 012345678",
        "     2  with unchanged code",
        "     2  with an injected slowdown of 3%",
        "     2  with an injected slowdown of 5%",
        "",
        "False positives on unchanged code",
        "                      trials          regressed  paired            suspect",
        "  all tests together       4  0 (at most 52.7%)       0  0 (at most 52.7%)",
        "  a.py::test_a             2  0 (at most 77.6%)       0  0 (at most 77.6%)",
        "  b.py::test_b             2  0 (at most 77.6%)       0  0 (at most 77.6%)",
        "  0 of 2 runs had at least one regressed test (at most 77.6%)",
        '  A trial is one test in one run. "at most": upper bound with 95% confidence.',
        '  "paired": regressed trials that paired rounds confirmed.',
        "",
        "Detected slowdowns: regressed trials per injected slowdown [95% interval]",
        "                                    3%                5%",
        "  all tests together                0 of 4 [0%, 60%]  4 of 4 [40%, 100%]",
        "    confirmed in paired rounds      0                 4",
        "    not confirmed in paired rounds  0                 0",
        "    suspect, not regressed          0                 0",
        "  a.py::test_a                      0 of 2 [0%, 84%]  2 of 2 [16%, 100%]",
        "  b.py::test_b                      0 of 2 [0%, 84%]  2 of 2 [16%, 100%]",
        "  Smallest slowdown detected in 80% of the trials",
        "    all tests together                             5%",
        "    a.py::test_a                                   5%",
        "    b.py::test_b                                   5%",
        "",
        "Smallest limits that this machine can enforce for these tests, for the ini file",
        "",
        "perf_limits =",
        "    step_time:5%",
        "",
        "step_time: 4 of 4 [40%, 100%] trials detected a slowdown of 5%; 99% of",
        "measurements of unchanged code changed by 0.2% or less",
    ]
    assert shown.err.splitlines()[:2] == [
        "run 1 of 6, with unchanged code ... 0 regressed and 0 suspect, of 2 tests (10 s), about 50 s left",
        "run 2 of 6, with an injected slowdown of 3% ... 0 regressed and 0 suspect, of 2 tests (10 s), about 40 s left",
    ]
    assert shown.err.splitlines()[-1].endswith("2 regressed and 0 suspect, of 2 tests (10 s)")


def test_it_goes_on_where_it_ended(suite, capsys):
    asked, happens = suite
    happens[3] = KeyboardInterrupt()

    assert main(["qualify", *SMALL, "--out", "q.jsonl", "tests", "--", "-k", "gpt"]) == 130
    first = capsys.readouterr()
    assert "run 3 of 4, with an injected slowdown of 5% ... interrupted" in first.err
    assert first.out.startswith("2 runs on machine cpu-1t")
    assert main(["qualify", *SMALL, "--out", "q.jsonl", "tests", "--", "-k", "gpt"]) == 0
    assert [share for share, *_ in asked] == [0.0, 0.03, 0.05, 0.05, 0.0]
    assert [first for _, first, _ in asked] == [True, False, False, True, False]
    assert {run.arguments for run in log(qualify.Path("q.jsonl")).read()} == {("tests", "-k", "gpt")}

    capsys.readouterr()
    assert main(["qualify", *SMALL, "--out", "q.jsonl", "tests", "--", "-k", "gpt"]) == 0
    made = capsys.readouterr()
    assert (len(asked), made.err) == (5, "")
    assert main(["qualify", "--table", "--out", "q.jsonl"]) == 0
    assert (capsys.readouterr().out, len(asked)) == (made.out, 5)


def test_interrupted_before_there_is_anything(suite, capsys):
    suite[1][1] = KeyboardInterrupt()

    assert main(["qualify", *SMALL]) == 130
    assert capsys.readouterr().out == ""


def test_json(suite, capsys):
    assert main(["qualify", *SMALL, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)

    assert data["runs"] == [{"effect": 0.0, "runs": 2}, {"effect": 0.03, "runs": 1}, {"effect": 0.05, "runs": 1}]
    assert data["unchanged"]["a.py::test_a"]["regressed"]["count"] == 0
    assert data["effects"][1]["tests"]["all tests together"]["regressed"]["of"] == 2
    assert data["smallest_found"] == dict.fromkeys(("all tests together", *NAMES), 0.05)
    assert data["ini"] == ["perf_limits =", "    step_time:5%"]


def test_no_run_begins_that_would_end_too_late(suite, capsys):
    asked, _ = suite

    assert main(["qualify", *SMALL, "--seconds", "5"]) == 0
    assert len(asked) == 1, "the first one is made, since nobody knows how long it takes"
    assert "stopped by --seconds after 0 s: 3 runs left" in capsys.readouterr().err


def test_the_folder_of_the_baselines_is_passed_on(suite, tmp_path):
    main(["qualify", "--dir", "records", "-n", "1", "-m", "0"])

    assert suite[0] == [(0.0, True, str(tmp_path / "records"))]


def test_no_limit_is_said_and_why(suite, capsys):
    main(["qualify", "-n", "1", "-m", "1", "--effects", "1,2"])
    out = capsys.readouterr().out

    assert "perf_limits" not in out
    assert "Smallest slowdown detected in 80% of the trials" in out
    assert "step_time: no limit, because no larger slowdown was detected in 80% of the trials" in out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--effects", "three"], "'three' is not a list of percents above 0"),
        (["--effects", "3,0"], "'3,0' is not a list of percents above 0"),
        (["--effects", ""], "'' is not a list of percents above 0"),
        (["-n", "-1"], "'-1' is not a number of runs: expected an integer of at least 0"),
        (["-m", "1.5"], "'1.5' is not a number of runs: expected an integer of at least 0"),
        (["--seconds", "0"], "'0' is not a number of seconds above 0"),
    ],
    ids=["word", "zero", "empty", "negative", "fraction", "seconds"],
)
def test_bad_arguments(suite, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["qualify", *arguments])

    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert suite[0] == []


@pytest.mark.parametrize("word", ["--perf-update", "--perf-update=all", "--perf-inject=5", "--no-perf"])
def test_options_that_are_not_for_runs(suite, capsys, word):
    assert main(["qualify", "--", word]) == 2
    assert capsys.readouterr().err == f"perfdl qualify: {word} cannot be used with perfdl qualify: remove {word}\n"


def test_files_that_cannot_be_continued(suite, capsys, tmp_path):
    _, happens = suite
    assert main(["qualify", "--table"]) == 3
    assert capsys.readouterr().err == "perf-qualify.jsonl contains no runs\n"

    main(["qualify", *SMALL, "tests/one"])
    capsys.readouterr()
    assert main(["qualify", *SMALL, "tests/two"]) == 2
    assert "perf-qualify.jsonl contains runs with other pytest arguments (tests/one)" in capsys.readouterr().err

    happens["key"] = "gpu"
    assert main(["qualify", "-n", "3", "tests/one"]) == 2
    assert "perf-qualify.jsonl contains runs of another machine (cpu-1t)" in capsys.readouterr().err

    happens.update(key="cpu-1t", settings={"perf_limits": "step_time:500%"})
    assert main(["qualify", "-n", "3", "tests/one"]) == 2
    said = "perf-qualify.jsonl contains runs that were compared otherwise (perf_limits none, not step_time:500%)"
    assert said in capsys.readouterr().err
    assert len(log(tmp_path / "perf-qualify.jsonl").read()) == 4

    (tmp_path / "perf-qualify.jsonl").write_text("{}\n")
    assert main(["qualify"]) == 2
    assert "perf-qualify.jsonl: line 1 was not written by perfdl qualify" in capsys.readouterr().err


def test_a_suite_that_cannot_be_judged_is_one_line(suite, capsys):
    suite[1][1] = RunFailed("a.py::test_a cannot be judged, it is missing")

    assert main(["qualify"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "run 1 of 60, with unchanged code ... failed",
        "perfdl qualify: a.py::test_a cannot be judged, it is missing",
    ]
