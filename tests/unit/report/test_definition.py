"""What reports say of tests whose definition differs between the sides, and which metric they name first."""

import re
from dataclasses import replace
from html import unescape

import pytest

from pytest_perfdl.model.record import Finding
from pytest_perfdl.report import html, markdown, traces
from pytest_perfdl.report.story import story
from pytest_perfdl.report.terminal import failure_text, summary_lines
from pytest_perfdl.results.run_file import dump, read_run, to_json
from pytest_perfdl.results.verdict import SourceDiff
from unit.report import runs

SAID = "the benchmark differs from that of the baseline commit; both sides ran the one of the working tree"
DIFF = SourceDiff("tests/perf/test_gpt.py", "BATCH", "@@ -1 +1 @@\n-BATCH = 64\n+BATCH = 32", 3, called=False)
STATIC = runs.counted("static_memory", 1000, 1500, unit="B")
FASTER = runs.timed(base=40_000_000, new=20_000_000, ci95=(-0.51, -0.49), verdict="improved")


def redefined(verdict, *, reason="step_time +9.4%", note=True, **rest):
    said = f"{SAID}; {reason}" if note else reason
    integrity = (Finding("note", "redefined", said.partition("; step")[0]),) if note else ()
    one = runs.result(verdict, reason=said, integrity=integrity, against="main", **rest)
    return replace(one, judgement=replace(one.judgement, definition=(DIFF,)))


def shown(one):
    """The texts that tell of a test, on one line: terminal in three lengths, failure, summary, page."""
    run = runs.run(one)
    page = html.render(run, traces.collect(run))
    texts = [
        *("\n".join(line.text for line in summary_lines(run, verbosity, 200)) for verbosity in (0, 1, 2)),
        failure_text(one, run),
        markdown.summary(run),
        re.sub("<[^>]*>", " ", page[page.index('<div class="story">') : page.index('<script type="application')]),
    ]
    return [" ".join(unescape(text).split()) for text in texts]


@pytest.mark.parametrize("verdict", ["regressed", "improved", "unchanged"])
def test_another_definition_is_said_first_with_the_diff(verdict):
    metrics = {"regressed": runs.timed(), "improved": FASTER, "unchanged": runs.quiet()}
    # A count makes the summary list a test that did not change.
    for text in shown(redefined(verdict, metrics=[metrics[verdict], runs.counted()])):
        places = [text.lower().index(part) for part in (SAID[:40], "batch = 64", "batch = 32")]
        assert places == sorted(places)
        figures = [place for part in ("40.00 ms", "41.20 ms", "12.34 ms") if (place := text.find(part)) >= 0]
        assert not figures or min(figures) > places[0], text
        assert SAID in text.lower(), text


def test_a_definition_that_one_side_cannot_run_is_the_reason_and_has_its_diff():
    why = "the benchmark differs from that of the baseline commit, which cannot run the current one: ImportError"
    for text in shown(redefined("changed", reason=why, note=False, metrics=[])):
        assert why.lower() in text.lower(), text
        assert "BATCH = 32" in text


def test_work_that_vanished_is_said_before_the_times():
    said = "only the first step does 99% of the baseline's work (aten::mm)"
    faster = replace(FASTER, verdict="changed")
    note = (Finding("note", "vanished", said),)
    one = runs.result("changed", reason=f"{said}; step_time -50%", metrics=[STATIC, faster], integrity=note)
    for text in shown(one):
        assert said in text.lower().replace("`", ""), text
        assert "20.00 ms" not in text or text.lower().index(said[:30]) < text.index("20.00 ms"), text


def test_the_diff_is_in_the_run_file_and_read_from_it(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(dump(to_json(runs.run(redefined("regressed")))))
    (read,) = read_run(path, tmp_path / "report").results
    assert read.judgement.definition == (DIFF,)


@pytest.mark.parametrize(
    ("verdict", "decided"),
    [
        ("improved", FASTER),
        ("regressed", runs.timed()),
        ("suspect", runs.timed(verdict="suspect")),
        ("inconclusive", runs.timed(verdict="inconclusive")),
        ("incomparable", runs.timed(verdict="incomparable")),
    ],
)
def test_the_metric_that_decided_is_named_first(verdict, decided):
    one = runs.result(verdict, reason="as it is", metrics=[STATIC, runs.counted(), decided])
    about = story(one, runs.run(one))
    assert about.headline == decided
    if verdict not in ("regressed", "suspect"):
        assert [each.name for each in about.also] == ["static_memory", "ops"]
    for text in shown(one):
        assert "step_time" in text, text
        assert text.index("step_time") < text.find("static_memory") or "static_memory" not in text, text


def test_of_a_test_that_only_counts_otherwise_the_count_is_named():
    one = runs.result("unchanged", metrics=[runs.quiet(), STATIC])
    assert story(one, runs.run(one)).headline == STATIC
