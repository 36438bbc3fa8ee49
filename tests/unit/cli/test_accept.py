"""`perfdl accept` takes measurements out of somebody's artifact: what belongs there, and nothing else."""

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from making import counted, record, timed

from pytest_perfdl import cli
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.model.record import Call, Case, Occasion
from pytest_perfdl.report import write_all
from pytest_perfdl.trace import Event, compress, write
from unit.report import runs

PICTURE = compress(write(None, [Event("X", "ProfilerStep#1", 0, 0, 0, 500, "user_annotation")]))
SLUG = "cpu-epyc-8c-1t"


@pytest.fixture
def artifact(tmp_path, monkeypatch):
    """A run file of two tests, the second without a trace, in a folder beside the project."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    (tmp_path / "picture").write_bytes(PICTURE)
    results = []
    for name in "ab":
        test = f"tests/t.py::test_{name}"
        measured = record({"step_time": timed(10)}, test=test)
        pictures = (runs.Exemplars("", None, tmp_path / "picture"),) if name == "a" else ()
        results.append(replace(runs.result("missing", test), new=measured, exemplars=pictures))
    return write_all(runs.run(*results, report_dir=tmp_path / "artifact", traces="all")).json


def changed(artifact, change):
    data = json.loads(artifact.read_bytes())
    change(data["tests"])
    artifact.write_text(json.dumps(data))
    return artifact


def written(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_was_measured_becomes_baselines_with_their_traces(artifact, tmp_path, capsys):
    assert cli.main(["accept", str(artifact)]) == 0
    folder = f"baselines/{SLUG}/tests/t"
    assert written(tmp_path / "project") == [
        f"{folder}/test_a.json",
        f"{folder}/test_a.trace.json.gz",
        f"{folder}/test_b.json",
    ]
    assert (tmp_path / "project" / folder / "test_a.trace.json.gz").read_bytes() == PICTURE
    assert f"accepted   tests/t.py::test_a  {folder}/test_a.json\n" in capsys.readouterr().out
    assert cli.main(["accept", str(artifact), "-k", "test_b"]) == 0
    assert capsys.readouterr().out.startswith("unchanged  tests/t.py::test_b")
    assert cli.main(["accept", str(artifact), "-k", "test_c"]) == 3


def test_the_folder_of_a_report_is_accepted_as_its_run_file_is(artifact, tmp_path, capsys):
    assert cli.main(["accept", str(artifact.parent)]) == 0
    assert len(written(tmp_path / "project")) == 3
    assert capsys.readouterr().out.count("accepted ") == 2


@pytest.mark.parametrize("command", ["accept", "refresh", "merge", "report", "export", "ci outputs", "ci comment"])
def test_a_url_is_no_run_file(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), "s3://bucket/run.json"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "s3://bucket/run.json is a URL: download the run file first, and name the copy" in said
    assert said.count("\n") == 1


def test_a_folder_elsewhere_is_named_whole(artifact, tmp_path, capsys):
    assert cli.main(["accept", str(artifact), "--dir", str(tmp_path / "elsewhere")]) == 0
    assert f"{tmp_path}/elsewhere/{SLUG}/tests/t/test_a.json" in capsys.readouterr().out


def bomb():
    return gzip.compress(b'{"traceEvents": [' + b" " * 50_000_000 + b"]}")


BAD_TRACES = {
    "no-gzip": (b"root:x:0:0:root:/root:/bin/sh\n", "is damaged: invalid gzip data"),
    "no-trace": (gzip.compress(b"root:x:0:0:root:/root:/bin/sh\n"), ""),
    "large": (
        gzip.compress(random.Random(1).randbytes(300_000)),
        "cannot be read: it is larger than 256 KiB",
    ),
    "large-inside": (bomb(), "is damaged: larger than 32 MiB decompressed"),
    "cut": (PICTURE[:-5], "is damaged: invalid gzip data"),
    "two-in-one": (PICTURE + b"secret", "is damaged: invalid gzip data"),
}


@pytest.mark.parametrize("data, says", BAD_TRACES.values(), ids=BAD_TRACES)
def test_only_an_exemplar_trace_is_copied(artifact, tmp_path, capsys, data, says):
    (trace,) = (artifact.parent / "traces").iterdir()
    trace.write_bytes(data)
    assert cli.main(["accept", str(artifact)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the trace of tests/t.py::test_a cannot be used: {trace}" in line
    assert says in line
    assert written(tmp_path / "project") == []


def set_record(place, name, value):
    def change(tests):
        tests[1]["record"][place][name] = value

    return change


BAD_TESTS = {
    "of-another-test": (lambda tests: tests[1]["record"].update(test="t.py::c"), "belongs to another test, t.py::c)"),
    "no-node-id": (lambda tests: [tests[1].update(id="t"), tests[1]["record"].update(test="t")], "'t' is not the node"),
    "verdict-a-list": (lambda tests: tests[1].update(verdict=["missing"]), "(verdict: expected `str`, got `array`)"),
    "traces-a-word": (lambda tests: tests[1].update(traces="abc"), "(traces: expected `array`, got `str`)"),
    "trace-a-word": (lambda tests: tests[1].update(traces=["abc"]), "(traces[0]: expected `object`, got `str`)"),
    "record-a-list": (lambda tests: tests[1].update(record=[1]), "(record: expected `object | null`, got `array`)"),
    "id-a-number": (lambda tests: tests[1].update(id=5), "(id: expected `str`, got `int`)"),
    "no-test": (lambda tests: tests.append(3), "tests[2] is malformed"),
    "commit-an-option": (
        lambda tests: tests[1]["record"]["occasions"][0].update(commit="--index-output=x"),
        "tests[1] is malformed (record.occasions[0].commit: not a full hash",
    ),
    "empty": (lambda tests: tests[1]["record"].update(calls=[]), "contains no measurement"),
    "huge-number": (lambda tests: tests[1].update(seconds=10**400), "is not a number up to 1e+100"),
}  # fmt: skip


@pytest.mark.parametrize("change, says", BAD_TESTS.values(), ids=BAD_TESTS)
def test_what_no_run_writes_is_refused_and_nothing_is_written(artifact, tmp_path, capsys, change, says):
    assert cli.main(["accept", str(changed(artifact, change))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert written(tmp_path / "project") == []


BAD_FILES = {
    "absent": (None, "cannot be read: No such file or directory"),
    "no-json": ("{", "is not JSON: "),
    "deep": ("[" * 200_000, "is not a run file: it is nested too deeply"),
    "without-its-fields": ('{"schema": 1, "tests": []}', "is damaged: is malformed (missing field `date`)"),
    "a-long-number": ('{"schema": 1, "tests": [], "x": ' + "9" * 5000 + "}", "is not JSON: "),
    "nan": ('{"schema": 1, "tests": [], "x": NaN}', "nan is not a number up to 1e+100"),
    "no-schema": ('{"tests": []}', "has no schema number"),
    "newer": (
        '{"schema": 99, "tests": []}',
        "another version of pytest-perfdl (schema 99, this one reads 1)",
    ),
    "a-list": ("[]", "it has no list of tests"),
    "twice": ('{"schema": 1, "tests": [], "tests": []}', "run.json is damaged ('tests' stands twice)"),
}


@pytest.mark.parametrize("text, says", BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_no_run_file_is_one_line(tmp_path, monkeypatch, capsys, text, says):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    assert cli.main(["accept", "run.json"]) == 2
    printed = capsys.readouterr()
    (line,) = (printed.out + printed.err).splitlines()
    assert says in line
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"][: text is not None]


def test_a_link_among_the_baselines_is_not_followed(artifact, tmp_path, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "project" / "baselines" / SLUG / "tests").mkdir(parents=True)
    (tmp_path / "project" / "baselines" / SLUG / "tests" / "t").symlink_to(outside)
    assert cli.main(["accept", str(artifact)]) == 2
    assert (
        "tests/t/test_a.json was not written: the directory of the file is a symbolic link to another directory"
        in capsys.readouterr().err
    )
    assert written(outside) == []


def test_the_folder_of_baselines_itself_may_be_a_link(artifact, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "project" / "baselines").symlink_to(tmp_path / "outside")
    assert cli.main(["accept", str(artifact)]) == 0
    assert Store(tmp_path / "project", "baselines").load("tests/t.py::test_a", SLUG) is not None


def test_a_run_that_was_compared_with_another_baseline_is_refused(artifact, capsys):
    """Somebody has recorded the test since: that baseline would be lost to a verdict that is not about it."""
    newer = replace(
        record({"step_time": timed(20)}, test="tests/t.py::test_b"), occasions=(Occasion(1, "2026-06-01", None, None),)
    )
    store = Store(Path.cwd(), "baselines")
    store.save(newer, {})
    assert cli.main(["accept", str(artifact)]) == 2
    said = capsys.readouterr().err
    assert (
        "tests/t.py::test_b was not compared with the baseline that is stored now, which was recorded on 2026-06-01"
        in said
    )
    assert said.count("\n") == 1
    assert store.load("tests/t.py::test_a", SLUG) is None, "nothing is written of a file that is refused"
    assert cli.main(["accept", str(artifact), "--test", "tests/t.py::test_b"]) == 0
    assert cli.main(["accept", str(artifact)]) == 0, "it is the stored one now"


def test_a_damaged_baseline_is_replaced(artifact):
    store = Store(Path.cwd(), "baselines")
    path = store.path("tests/t.py::test_b", SLUG)
    path.parent.mkdir(parents=True)
    path.write_text("<<<<<<< ours\n")
    assert cli.main(["accept", str(artifact)]) == 0
    assert store.load("tests/t.py::test_b", SLUG) is not None


@pytest.mark.parametrize("side", ["against", "against_python"])
def test_a_verdict_on_another_side_calls_for_no_baseline(side, artifact, capsys):
    changed(artifact, lambda tests: [test.update({side: "other"}) for test in tests])
    assert cli.main(["accept", str(artifact)]) == 3
    assert "nothing to accept" in capsys.readouterr().out
    assert cli.main(["accept", str(artifact), "--all"]) == 0


def test_the_tests_of_a_file_that_a_run_did_not_measure_keep_their_baseline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    test = "tests/t.py::benchmarks"

    def measured(*times, names):
        cases = tuple(Case(name, times, 1, 1, 0) for name in names)
        counts = {"cases": counted(*[len(cases)] * len(times))}
        return record(test=test, calls=(Call("", counts, (), (0,) * len(times), cases=cases),))

    store, new = Store(tmp_path, "baselines"), measured(2.0, names=["test_a"])
    file = write_all(
        runs.run(replace(runs.result("missing", test), new=new, exemplars=()), report_dir=tmp_path / "report")
    ).json
    store.save(measured(1.0, names=["test_a", "test_b"]), {})
    assert cli.main(["accept", str(file), "--test", test]) == 0
    assert {case.id: case.ns for case in store.load(test, SLUG).table.cases} == {"test_a": (2,), "test_b": (1,)}
    store.save(measured(1.0, 1.0, names=["test_a", "test_b"]), {})
    before = store.load(test, SLUG)
    assert cli.main(["accept", str(file), "--test", test]) == 2
    assert "cannot record a part of the cases of tests/t.py::benchmarks" in capsys.readouterr().err
    assert store.load(test, SLUG) == before
