"""Shards are joined into the run that they are parts of, or refused in one line."""

import json
from dataclasses import replace

import pytest

from pytest_perfdl import cli
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.record import Key
from pytest_perfdl.model.shard import Shard
from pytest_perfdl.report import write_all
from pytest_perfdl.report.html import without_records
from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.runs.merging import merged
from unit.report import runs

TESTS = [f"tests/test_{name}.py::test_step" for name in "abcde"]


def shard(folder, index, *results, count=2, tests=None, require=0, **rest):
    """The run file of a shard of the five tests."""
    total = len(TESTS) if tests is None else tests
    run = runs.run(
        *results, report_dir=folder, traces="all", shard=Shard(index, count, total, require), **{"notes": (), **rest}
    )
    return write_all(run).json


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Run files of two shards with all tests, the first with a regression and its traces."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    first = [
        runs.with_traces(runs.result("regressed", TESTS[3]), tmp_path / "made"),
        runs.result("unchanged", TESTS[0]),
        runs.result("missing", TESTS[4], fails=False),
    ]
    second = [runs.result("unchanged", TESTS[1]), runs.result("improved", TESTS[2])]
    return [
        shard(tmp_path / "shards" / "one", 1, *first, notes=("shard 1 of 2: 3 of 5 perf tests", "something was odd")),
        shard(tmp_path / "shards" / "two", 2, *second, date="2026-05-09T13:59:00Z", seconds=10.0),
    ]


def read(path):
    return json.loads(path.read_bytes())


def changed(path, change):
    data = read(path)
    change(data)
    path.write_text(json.dumps(data))


def refused(capsys, *arguments):
    """The one line about shards that cannot be joined, after which there is no report."""
    assert cli.main(["merge", *map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line.removeprefix("perfdl merge: ")


def test_shards_become_one_report_with_their_traces(two, tmp_path, capsys):
    assert cli.main(["merge", *(str(path.parent) for path in two)]) == 1
    printed = capsys.readouterr().out
    assert "4 compared: 1 regressed, 1 improved, 2 unchanged. 1 missing" in printed
    assert "shard 1 of 2: something was odd" in printed
    assert "3 of 5" not in printed
    report = tmp_path / "perf-report"
    traces = sorted(path.name for path in (report / "traces").iterdir())
    assert printed.splitlines()[-1] == f"wrote perf-report/index.html, summary.md, run.json and {len(traces)} traces"
    whole = read(report / "run.json")
    assert [test["id"] for test in whole["tests"]] == sorted(TESTS)
    assert (whole["shard"], whole["date"], whole["seconds"]) == (None, "2026-05-09T13:59:00Z", 74.1)
    by_id = {test["id"]: test for path in two for test in without_records(read(path))["tests"]}
    assert without_records(whole)["tests"] == [by_id[test] for test in sorted(TESTS)]
    assert traces == sorted(path.name for path in (two[0].parent / "traces").iterdir())
    page = (report / "index.html").read_text()
    assert all(test in page for test in TESTS)


def test_the_exit_code_is_that_of_the_shards_own_verdicts(two, tmp_path):
    changed(two[0], lambda data: [test.update(fails=False) for test in data["tests"]])
    assert cli.main(["merge", *map(str, two), "--out", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here" / "index.html").is_file()


def test_a_shard_without_tests_is_not_missing(two, tmp_path):
    paths = [
        shard(tmp_path / "1", 1, *(runs.result("unchanged", test) for test in TESTS[:1]), count=2, tests=1),
        shard(tmp_path / "2", 2, count=2, tests=1, key=Key("", {}), context={}),
    ]
    assert cli.main(["merge", *map(str, paths)]) == 0
    assert read(tmp_path / "perf-report" / "run.json")["key"]["slug"] == runs.KEY.slug


def test_of_a_shard_that_ran_twice_the_newest_is_used(two, tmp_path, capsys):
    again = shard(
        tmp_path / "again", 1, *(runs.result("unchanged", TESTS[number]) for number in (3, 0, 4)), date="2026-05-10"
    )
    assert cli.main(["merge", str(again), *map(str, two)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"shard 1 of 2: {again} is used, and not the older {two[0]}"
    assert {test["verdict"] for test in read(tmp_path / "perf-report/run.json")["tests"]} == {"unchanged", "improved"}


def test_missing_shards_are_refused_unless_they_may_be(two, tmp_path, capsys):
    paths = [
        shard(tmp_path / "2", 2, runs.result("unchanged", TESTS[0]), count=4),
        shard(tmp_path / "3", 3, runs.result("regressed", TESTS[1]), count=4),
    ]
    said = "1 and 4 of 4 shards are missing"
    assert refused(capsys, *paths) == f"{said}: add the run files, or use --partial to merge the others"
    assert cli.main(["merge", *map(str, paths), "--partial"]) == 1
    assert said in capsys.readouterr().out
    assert said in (tmp_path / "perf-report/summary.md").read_text()


def test_too_few_compared_tests_fail_all_shards_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    paths = [
        shard(tmp_path / str(number), number, runs.result(verdict, TESTS[number]), tests=2, require=2)
        for number, verdict in ((1, "unchanged"), (2, "new"))
    ]
    assert cli.main(["merge", *map(str, paths)]) == 1
    assert "1 test was compared, but --perf-require requires 2 (1 new)" in capsys.readouterr().out
    for path in paths:
        changed(path, lambda data: data["shard"].update(require=1))
    assert cli.main(["merge", *map(str, paths)]) == 0


DIFFERENT = {
    "commit": (
        {"commit": "88bb02" + "0" * 34},
        "the shards differ in the commit: 77aa01c8e2f10000000000000000000000000000 in ",
    ),
    "no commit": ({"commit": None}, "the shards differ in the commit: 77aa01c8e2f10000000000000000000000000000 in "),
    "folder": ({"perf_dir": "others"}, "the shards differ in the folder of the baselines: baselines in "),
    "limits": (
        {"settings": {"--perf-limit": "step_time:500%"}},
        "the shards differ in the setting --perf-limit: none in ",
    ),
    "machine": (
        {"key": {"slug": "cpu-other", "parts": {}}},
        f"the shards differ in the machine ID: {runs.KEY.slug} in ",
    ),
    "count": ({"shard": {"index": 2, "count": 3, "tests": 5}}, "the shards differ in the number of shards: 2 in "),
    "tests": (
        {"shard": {"index": 2, "count": 2, "tests": 6}},
        "the shards differ in the number of perf tests in all shards: 5 in ",
    ),
    "no shard": ({"shard": None}, "shards/two/run.json is not a shard: it was measured without --perf-shard"),
    "impossible": (
        {"shard": {"index": 3, "count": 2, "tests": 5}},
        "shards/two/run.json is damaged: is malformed (shard: 3/2 is not a shard)",
    ),
}


@pytest.mark.parametrize("change, said", DIFFERENT.values(), ids=DIFFERENT)
def test_shards_that_do_not_belong_together(two, change, said, tmp_path, capsys):
    changed(two[1], lambda data: data.update(change))
    line = refused(capsys, *(path.relative_to(tmp_path) for path in two))
    assert line.startswith(said)
    assert "shards/two/run.json" in line
    assert not (tmp_path / "perf-report").exists()


def test_a_test_in_two_shards_and_one_in_none(two, tmp_path, capsys):
    double = shard(tmp_path / "double", 2, *(runs.result("unchanged", TESTS[number]) for number in (0, 1)))
    line = refused(capsys, two[0], double)
    assert line.startswith(f"{TESTS[0]} was measured in two shards, {two[0]} and {double}: measure all shards from")
    fewer = shard(tmp_path / "fewer", 2, runs.result("unchanged", TESTS[1]))
    assert refused(capsys, two[0], fewer).startswith("5 perf tests collected, but 4 in the shards: measure all shards")


def test_a_shard_is_not_replaced_by_the_report(two, tmp_path, capsys):
    before = two[0].read_bytes()
    line = refused(capsys, *two, "--out", tmp_path / "shards" / "x" / ".." / "one")
    assert line == f"{two[0]} would be replaced by the merged report: choose another folder with --out"
    assert two[0].read_bytes() == before


def test_what_is_no_run_file_is_one_line(two, tmp_path, capsys):
    (tmp_path / "none").mkdir()
    assert refused(capsys, two[0], "none") == "none/run.json cannot be read: No such file or directory"


def test_other_versions_are_said(two, tmp_path):
    found = {path: read_run(path, tmp_path) for path in two}
    other = replace(found[two[1]], context={**found[two[1]].context, "torch": "9.9"})
    notes = merged({**found, two[1]: other}).run.notes
    assert "the shards differ in torch" in notes


def compared_with(run, against="", commit="1" * 40, python=""):
    """The run as `--perf-against` leaves it."""

    def base(record):
        return record and replace(record, occasions=(replace(record.occasions[0], commit=commit),))

    results = (replace(one, base=base(one.base), against=against, against_python=python) for one in run.results)
    return replace(run, results=tuple(results))


BASES = {
    "baselines": ({"against": "main"}, {}, ("1" * 40, "baselines")),
    "commits": ({"against": "main"}, {"against": "main", "commit": "2" * 40}, ("1" * 40, "2" * 40)),
    "interpreters": ({"python": "old/python"}, {"python": "new/python"}, ("old/python", "new/python")),
    "an interpreter": (
        {"against": "main"},
        {"against": "main", "python": "new/python"},
        ("1" * 40, " with new/python"),
    ),
}


@pytest.mark.parametrize("first, second, names", BASES.values(), ids=BASES)
def test_shards_that_were_compared_with_different_bases(two, first, second, names, tmp_path):
    found = [read_run(path, tmp_path) for path in two]
    shards = dict(zip(two, (compared_with(found[0], **first), compared_with(found[1], **second)), strict=True))
    with pytest.raises(CommandError, match=r"^the shards differ in the base of the comparison: ") as refused:
        merged(shards)
    for path, name in zip(two, names, strict=True):
        assert f"{name} in {path}" in str(refused.value)


def test_another_name_of_the_same_base_is_the_same_base(two, tmp_path):
    """`origin/main` and `main`, say; and a shard whose tests are all new says nothing of the base."""
    found = [read_run(path, tmp_path) for path in two]
    assert merged(
        {two[0]: compared_with(found[0], against="main"), two[1]: compared_with(found[1], against="origin/main")}
    )
    new = replace(found[1], results=tuple(replace(one, base=None, against="main") for one in found[1].results))
    assert merged({two[0]: compared_with(found[0], against="main"), two[1]: new})


def test_names_of_shards_reach_no_terminal_as_they_are(two, tmp_path):
    found = {path: read_run(path, tmp_path) for path in two}
    other = replace(found[two[1]], commit="\x1b[31mred")
    with pytest.raises(CommandError) as refused:
        merged({**found, two[1]: other})
    assert "\x1b" not in str(refused.value)


def test_the_job_summary_of_github(two, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    assert cli.main(["merge", *map(str, two)]) == 1
    assert (tmp_path / "step.md").read_text() == (tmp_path / "perf-report/summary.md").read_text()
