"""GitHub Actions: annotations as workflow commands, and the step summary.

Both need no token, so they work for pull requests from forks. The text of the summary comes from `markdown`. The
comment on a pull request, which needs a token, is made and posted by `ci.comment`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_perfdl.model.errors import ReportError
from pytest_perfdl.report import figures, words
from pytest_perfdl.report.story import Story, cause_line, story
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import MetricVerdict

MOST = 9
"""GitHub shows ten annotations of a kind for a step; the tenth says how many there are more."""
SUMMARY_LIMIT = 1024 * 1024
"""Bytes of step summary that GitHub accepts; what is longer is not shown at all."""


def workflow_commands(run: Run, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Lines to print: `::error` for tests that fail, `::warning` for those that warn, worst first.

    An annotation is at the changed line that a regression comes from, where that is known, else at the test.

    "::error file=tests/test_gpt.py,line=12,title=perf +9.4%25 test_step::regressed: ..."
    """
    ranked = words.worst_first(run.results)
    failing = [result for result in ranked if result.fails]
    warning = [result for result in ranked if not result.fails and words.fails_or_warns(result)]
    return [*_annotate("error", failing, run, environ), *_annotate("warning", warning, run, environ)]


def runs_here(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a job of GitHub Actions, which reads workflow commands from its output."""
    return environ.get("GITHUB_ACTIONS") == "true"


def notice(text: str) -> str:
    """Line to print: an annotation of the whole run that is neither an error nor a warning.

    >>> notice("no comment: no token")
    '::notice title=perf::no comment: no token'
    """
    return f"::notice title=perf::{_data(words.visible(text))}"


def append_summary(summary: Callable[[int], str], environ: Mapping[str, str] = os.environ) -> bool:
    """Append to `$GITHUB_STEP_SUMMARY` what `summary(limit)` gives for the bytes that are left there.

    Returns whether there was such a file to write to.

    Raises
    ------
    ReportError
        When the file cannot be written.
    """
    name = environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return False
    path = Path(name)
    try:
        used = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(summary(max(0, SUMMARY_LIMIT - used)))
    except OSError as error:
        raise ReportError(f"the step summary {path} cannot be written: {error.strerror or error}") from error
    return True


def _annotate(kind: str, results: Sequence[Result], run: Run, environ: Mapping[str, str]) -> list[str]:
    shown = results[:MOST]
    lines = [_annotation(kind, result, run, environ) for result in shown]
    if len(shown) < len(results):
        report = words.shown_path(run, run.report_dir / "index.html")
        lines.append(f"::{kind} title=perf::{_data(f'and {len(results) - len(shown)} more, see {report}')}")
    return lines


def _annotation(kind: str, result: Result, run: Run, environ: Mapping[str, str]) -> str:
    judgement = result.judgement
    about = story(result, run)
    worst = about.headline
    effect = figures.effect(worst) if worst is not None else ""
    title = f"perf {effect or words.word(result)} {result.id.rpartition('::')[2]}"
    text = [f"{words.word(result)}: {words.visible(judgement.reason)}"]
    text += [_metric(metric) for metric in (worst, *about.also) if metric is not None]
    text += [f"cause: {cause_line(group)}" for group in about.causes[:1]]
    text += [about.memory] if about.memory else []
    text += [f"{purpose}: {command}" for purpose, command in about.commands]
    file, line = _place(about, result)
    place = f"file={_property(_from_workspace(file, run, environ))},line={line}"
    return f"::{kind} {place},title={_property(words.visible(title))}::{_data(chr(10).join(text))}"


def _place(about: Story, result: Result) -> tuple[str, int]:
    """The changed line, of the first cause that has one, else the test's."""
    for diff in about.diffs:
        if diff.line and diff.called:
            return diff.file, diff.line
    return result.file, result.line


def _metric(metric: MetricVerdict) -> str:
    interval = figures.interval(metric)
    parts = [figures.change(metric), figures.effect(metric), f"95% interval {interval}" if interval else ""]
    return f"{metric.name} " + "  ".join(filter(None, [*parts, figures.limit(metric)]))


def _from_workspace(file: str, run: Run, environ: Mapping[str, str]) -> str:
    """A file relative to the checkout: pytest's root directory may lie below it."""
    path = run.root / file
    workspace = environ.get("GITHUB_WORKSPACE")
    if workspace and path.is_relative_to(workspace):
        return path.relative_to(workspace).as_posix()
    return file


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
