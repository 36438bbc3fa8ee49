"""Every report shows waived tests with why, who and until when, and what changed in the waivers comes first."""

import csv
import io
from dataclasses import replace

import pytest

from pytest_perfdl.judge.budget import phrase
from pytest_perfdl.report import html, markdown, traces
from pytest_perfdl.report.exports import properties, to_csv
from pytest_perfdl.report.github import workflow_commands
from pytest_perfdl.report.terminal import failure_text, summary_lines
from pytest_perfdl.report.words import WAIVERS_LISTED, waiver_lines, waiver_notes
from pytest_perfdl.results.run import WaiverFile
from pytest_perfdl.results.run_file import dump, read_run, to_json
from unit.report import runs
from unit.report.test_html import Page

PHRASE = "waived up to 12% until 2026-12-01 by ana@example.com: new attention"
WHO = "by ana@example.com: new attention"
ADDED = replace(runs.WAIVER, test="tests/test_added.py::*", added=True)
EXPIRED = replace(runs.WAIVER, test="tests/test_old.py::test_a[bf16]", expired=True, until="2026-01-31")
FILE = WaiverFile("perf_waivers.toml", (EXPIRED, runs.WAIVER, ADDED), unmatched=(runs.WAIVER,))


def run(*results, file=FILE):
    return runs.run(*(results or (runs.result("waived"), runs.result("regressed", "t.py::test_other"))), waivers=file)


def terminal(given, verbosity=0):
    return "\n".join(line.text for line in summary_lines(given, verbosity, 100))


def page(given):
    return Page(html.render(given, traces.collect(given)))


def test_a_waived_test_is_shown_with_who_why_and_until():
    for verbosity in (0, 1, 2):
        assert PHRASE in " ".join(terminal(run(), verbosity).split()), verbosity
    assert "WAIVED tests/perf/test_gpt.py::test_train_step[bf16]" in " ".join(terminal(run()).split())
    assert "2 compared: 1 regressed, 1 waived." in terminal(run())
    assert f"step_time {PHRASE}" in page(run()).words
    assert "◇ waived" in page(run()).words
    text = markdown.summary(run())
    assert f"**Waiver:** `step_time {PHRASE}`" in text
    assert "| 3% | **waived** |" in text
    (annotation,) = [line for line in workflow_commands(run(), {}) if line.startswith("::warning")]
    assert PHRASE.replace("%", "%25") in annotation
    found = dict(properties(run().results[0], run()))
    assert (found["perf.verdict"], found["perf.step_time.waiver"]) == ("waived", PHRASE)
    assert found["perf.step_time.verdict"] == "regressed"
    rows = list(csv.DictReader(io.StringIO(to_csv(run()))))
    assert next(row["waiver"] for row in rows if row["metric"] == "step_time") == PHRASE
    metric = to_json(run())["tests"][0]["metrics"]["step_time"]
    assert metric["verdict"] == "regressed"
    assert (metric["waiver"]["who"], metric["waiver"]["until"]) == ("ana@example.com", "2026-12-01")


def test_waivers_that_the_change_adds_come_first_then_expired_ones_then_those_without_a_test():
    lines = waiver_lines(run())
    assert lines == [
        f"waiver added by the current change: tests/test_added.py::*, step_time {PHRASE}",
        f"waiver expired on 2026-01-31: {EXPIRED.test} ({WHO}); remove it from {FILE.name}, or renew it",
        "waiver without a perf test in perf_waivers.toml: tests/perf/test_waived.py::*",
    ]
    for shown, before in (
        (terminal(run()), "machine cpu-amd"),
        (terminal(run(), -1), "REGRESSED"),
        (page(run()).words, "Machine ID"),
        (markdown.summary(run()), "2 compared"),
    ):
        flat = " ".join(shown.split()).casefold()
        places = [
            flat.index(part) for part in ("waiver added by", "waiver expired on", "waiver without", before.lower())
        ]
        assert places == sorted(places), shown
    assert terminal(run()).startswith("waiver added by the current change")


def test_what_is_unknown_is_said():
    assert waiver_lines(run(file=WaiverFile("perf_waivers.toml", doubt="it is unknown"))) == ["it is unknown"]
    assert waiver_lines(run(file=WaiverFile())) == []


def test_many_waivers_are_counted():
    many = tuple(replace(ADDED, test=f"t.py::test_{number}") for number in range(300))
    lines = waiver_lines(run(file=WaiverFile("perf_waivers.toml", many)))
    assert len(lines) == WAIVERS_LISTED + 1
    assert lines[-1] == "and 280 more waivers added by the current change"


def test_texts_of_the_file_are_harmless():
    hostile = replace(ADDED, test="\x1b[2J::error::x", why=runs.HOSTILE, who="##[error]x\u202e")
    result = runs.result("waived", metrics=[runs.timed(waiver=hostile)], reason=phrase(hostile))
    given = run(result, file=WaiverFile("perf_waivers.toml", (hostile,)))
    shown = terminal(given)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "##[" not in shown
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())
    assert "<img" not in html.render(given, traces.collect(given))
    text = markdown.summary(given)
    assert f"- {markdown.code(waiver_lines(given)[0], 1000)}" in text.splitlines()
    assert all("\n" not in line for line in workflow_commands(given, {}))


def test_a_run_file_keeps_the_waivers(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(dump(to_json(run())))
    found = read_run(path, tmp_path)
    assert found.waivers == FILE
    assert found.results[0].metrics[0].waiver == runs.WAIVER
    assert waiver_notes(found.results[0].judgement) == [f"step_time {PHRASE}"]


@pytest.mark.parametrize("verdict", ["waived", "regressed"])
def test_a_waived_test_is_not_to_be_accepted(verdict):
    shown = terminal(run(runs.result(verdict)))
    assert ("--perf-update" in shown) == (verdict == "regressed")
    assert "All 1 perf test" not in shown


def test_with_fail_on_waived_the_failure_says_it():
    failing = runs.result("waived", fails=True)
    assert failure_text(failing, run(failing)).startswith("waived: ")
    assert "The perf test is waived" in markdown.summary(run(failing))
