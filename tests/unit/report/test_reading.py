import json
from dataclasses import replace

import pytest

from pytest_perfdl import cli
from pytest_perfdl.model.errors import RunFileError
from pytest_perfdl.model.record import MeasurementPlan
from pytest_perfdl.report import html, traces, write_all
from pytest_perfdl.report.html import without_records
from pytest_perfdl.results.run import Suggestion, with_history
from pytest_perfdl.results.run_file import dump, read_run, to_json
from pytest_perfdl.scaling.growth import Beside, IntervalEstimate
from unit.report import runs


@pytest.fixture
def written(tmp_path):
    """A report on disk, and the run that it was made from."""
    kernel = runs.timed("kernel gemm", of_step=False, verdict="suspect")
    step = runs.timed(stored=40_000_000, evidence="paired", rounds=8, in_every_round=True)
    regressed = runs.result(blame=[runs.PLACED], source_diffs=(runs.SOURCE,), metrics=[step, kernel])
    environment = (runs.timed(evidence="unpaired", reason="+20.0% since another torch"),)
    regressed = replace(regressed, judgement=replace(regressed.judgement, environment=environment, rounds="forked"))
    advised = (
        Suggestion("the step waits for input", "add workers", 0.2, (0.1, 0.3), "a guess", "examples/x.py"),
        Suggestion("a", "b", 0.1),
    )
    results = [
        runs.with_traces(replace(regressed, suggestions=advised), tmp_path),
        *(one for one in runs.each_verdict() if one.judgement.verdict != "regressed"),
        runs.hostile(),
    ]
    run = runs.run(*results, report_dir=tmp_path / "report", notes=("a note",), traces="all")
    return write_all(run), run


def test_what_is_read_makes_the_same_report(written, tmp_path):
    report, run = written
    again = read_run(report.json, tmp_path / "again")
    # Records hold times to four digits, so what stands beside them is compared here and the whole of it from then on.
    assert without_records(to_json(again)) == without_records(to_json(run))
    third = read_run(write_all(again).json, tmp_path / "third")
    assert dump(to_json(third)) == dump(to_json(again))
    pages = [html.render(one, traces.collect(one)) for one in (again, third)]
    assert pages[0] == pages[1]


def test_the_last_run_by_date_is_shown_and_the_others_are_its_history(written, tmp_path):
    report, _ = written
    run = read_run(report.json, tmp_path)
    before = replace(run, date="2026-01-01T00:00:00Z")
    shown = with_history([run, before])
    assert shown.date == run.date
    assert [len(one.history) for one in shown.results] == [int(one.new is not None) for one in run.results]
    page = html.render(shown, {})
    assert '"source":"run"' in page.replace(" ", "")


@pytest.mark.parametrize(
    "other",
    [{"key": runs.Key("another", {})}, {"plan": MeasurementPlan(15, 40, threads=9)}, {"test_hash": "another"}],
    ids=["machine", "settings", "definition"],
)
def test_a_run_that_measured_otherwise_is_no_history(written, other, tmp_path):
    report, _ = written
    run = read_run(report.json, tmp_path)
    foreign = [replace(one, new=one.new and replace(one.new, **other)) for one in run.results]
    shown = with_history([replace(run, date="2026-01-01", results=tuple(foreign)), run])
    assert not any(one.history for one in shown.results)


def test_the_command_writes_the_report_where_the_run_file_is(written, tmp_path, capsys):
    report, _ = written
    report.html.unlink()
    assert cli.main(["report", str(report.json)]) == 0
    assert report.html.is_file()
    assert "index.html" in capsys.readouterr().out
    assert cli.main(["report", str(report.json.parent), str(report.json), "--out", str(tmp_path / "both")]) == 0
    assert (tmp_path / "both" / "summary.md").is_file()
    assert cli.main(["report", str(report.json), "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").is_file()


BAD = {
    "absent": None,
    "not-json": b"{",
    "a-record": b'{"schema": 1, "test": "a"}',
    "newer": b'{"schema": 999, "tests": []}',
    "no-key": b'{"schema": 1, "tests": []}',
    "odd-test": b'{"schema": 1, "key": {"slug": "a", "parts": {}}, "context": {}, "tests": [{"verdict": "bad"}]}',
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_file_that_is_none_is_one_line(content, tmp_path, capsys):
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunFileError) as error:
        read_run(path, tmp_path)
    assert "\n" not in str(error.value)
    assert cli.main(["report", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../n.json.gz", "/etc/passwd", "n.json.gz", "traces/../../n.json.gz", "traces/..", 3])
@pytest.mark.parametrize("command", ["report", "accept"])
def test_a_trace_is_a_plain_file_beside_the_run_file(written, tmp_path, monkeypatch, capsys, name, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.json.gz").write_bytes(b"secret")
    path = rewritten(written, lambda test: test.update(traces=[{"call": "", "new": name}]))
    assert cli.main([command, str(path)]) == 2
    error = capsys.readouterr().err
    assert "is damaged: tests[" in error
    assert "(traces[0].new: " in error
    assert not (tmp_path / "baselines").exists()


@pytest.mark.parametrize("command", ["report", "accept"])
def test_a_trace_is_no_link_to_elsewhere(written, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    report, _ = written
    (tmp_path / "secret.json.gz").write_bytes(b"secret")
    (report.json.parent / "traces" / "link.json.gz").symlink_to(tmp_path / "secret.json.gz")
    path = rewritten(
        written, lambda test: test.update(verdict="missing", traces=[{"call": "", "new": "traces/link.json.gz"}])
    )
    assert cli.main([command, str(path)]) == 2
    assert "traces/link.json.gz is a symbolic link to another directory" in capsys.readouterr().err
    assert not (tmp_path / "baselines").exists()


def test_the_command_line_says_what_excludes_each_other(written, capsys):
    report, _ = written
    assert cli.main(["report", str(report.json), "--html", "a", "--out", "b"]) == 2
    assert "cannot be combined" in capsys.readouterr().err


def rewritten(written, change):
    """The run file with something changed in its last test, which has a curve."""
    report, _ = written
    data = json.loads(report.json.read_bytes())
    assert data["tests"][-1]["curves"]
    change(data["tests"][-1])
    report.json.write_text(json.dumps(data))
    return report.json


def test_a_curve_is_read_as_it_was_written(written, tmp_path):
    report, run = written
    assert read_run(report.json, tmp_path).results[-1].curves == run.results[-1].curves


def test_what_else_grew_is_read_as_it_was_written(tmp_path):
    one = runs.curve()
    also = Beside("overhead", 0, IntervalEstimate(1e5, 5e4, 1.5e5))
    one = replace(one, growth=replace(one.growth, beside=also))
    report = write_all(runs.run(replace(runs.result(), curves=(one,)), report_dir=tmp_path / "report"))
    assert read_run(report.json, tmp_path / "again").results[0].curves == (one,)


BROKEN_CURVES = {
    "no-object": lambda curve: curve.clear(),
    "no-sizes": lambda curve: curve.update(sizes=[]),
    "negative-size": lambda curve: curve["fitted"][0].update(size=-1.0),
    "time-is-text": lambda curve: curve["sizes"][0]["new"].update(value="fast"),
    "null-in-an-interval": lambda curve: curve["growth"]["effect"].update(low=None),
}


@pytest.mark.parametrize("broken", BROKEN_CURVES.values(), ids=BROKEN_CURVES.keys())
def test_a_broken_curve_is_one_line(written, tmp_path, broken):
    path = rewritten(written, lambda test: broken(test["curves"][0]))
    with pytest.raises(RunFileError, match=r"is damaged: tests.\d+. (has a curve |is malformed .curves)") as error:
        read_run(path, tmp_path)
    assert "\n" not in str(error.value)
