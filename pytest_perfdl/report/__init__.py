"""Reports: a judged run becomes something to read.

`results.run` holds the one value that every report on a run is made from. Each reporter is a plain function over it;
none measures or judges. `write_all` writes the report folder.

- Content: `story` says what comes first about a test (what changed, why, where), with `cause_words` for the causes;
  `words` has the other sentences and the orders that reports share, `compared` how many tests were compared, `memory`,
  `ranks` and `cases` what is said of a peak, of a job and of a table, `advice` of predictions. `figures` formats
  numbers.
- Form: `layout` (tables and paragraphs on a terminal), `svg` (pictures), `files` (writes all files or none).
- A run: `terminal` (summary, text of a failure), `html` (the self-contained page, with `details` and `evidence`; of
  `templates/`, `_body` has the sections of a test), `markdown` (text of the step summary and of a comment), `github`
  (annotations; writes the step summary), `exports` (CSV, Parquet, JUnit properties), `benchmark_json` (the JSON of
  pytest-benchmark). `results.run_file` writes `run.json`.
- Traces of a run: `traces` collects them; `step_trace` (Chrome trace of both sides) and `speedscope` make the joint
  ones.
- Commands: `history`, `scaling`, `whatif`, and the packages `diff` and `trace`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_perfdl.model.errors import ReportError
from pytest_perfdl.report.files import remove_files, write_files

if TYPE_CHECKING:
    # Commands that read traces import this package too, and need neither runs nor pytest.
    from pytest_perfdl.results.run import Run

__all__ = ["ReportError", "Written", "write_all"]


_ELSEWHERE = "free some space or name another folder with --perf-report"
_IGNORED = b"# Made by pytest-perfdl: a report is made again by every run.\n*\n"


@dataclass(frozen=True, slots=True)
class Written:
    """Where the parts of a report lie."""

    html: Path
    json: Path
    markdown: Path
    traces: tuple[Path, ...]
    problems: tuple[str, ...] = ()
    """One line for each trace that could not be included."""


def write_all(run: Run) -> Written:
    """Write `run.json`, then `index.html`, `summary.md` and `traces/` into `run.report_dir`.

    What was measured is on disk before anything is drawn. Traces that an earlier report left in the folder are
    removed, other files are not touched. A folder that is made for the report is ignored by git.

    Raises
    ------
    ReportError
        When the folder is not writable or the disk is full, or the page cannot be drawn; nothing is then left
        half-written, and an earlier run's page does not stay where it would be taken for this one's. (Neither does it
        where this process is killed meanwhile.)
    """
    # Imported here so that reading `results.run` does not load jinja2.
    from pytest_perfdl.results import run_file

    data = run_file.to_json(run)
    file = run.report_dir / "run.json"
    made = {} if run.report_dir.is_dir() else {run.report_dir / ".gitignore": _IGNORED}
    write_files(made | {file: run_file.dump(data)}, elsewhere=_ELSEWHERE)
    _remove_pages(run.report_dir)
    try:
        return _write_pages(run, data, file)
    except ReportError:
        raise
    except Exception as error:
        raise ReportError(
            f"the HTML report cannot be written: {type(error).__name__}: {error}; the measured data is in {file}"
        ) from error


def remove_earlier(folder: Path, files: Iterable[Path | None]) -> None:
    """Remove what an earlier run reported: if this one is killed, nobody must take it for this one's.

    Parameters
    ----------
    folder
        Of the report.
    files
        Those of `--perf-json` and `--perf-json-benchmark`, if any.
    """
    remove_files([folder / "run.json"], folder)
    _remove_pages(folder)
    for file in filter(None, files):
        remove_files([file], file.parent)


def _remove_pages(folder: Path) -> None:
    remove_files((folder / name for name in ("index.html", "summary.md")), folder)


def _write_pages(run: Run, data: dict[str, Any], file: Path) -> Written:
    from pytest_perfdl.report import html, markdown, traces
    from pytest_perfdl.results.trace_files import OURS

    collected = traces.collect(run)
    calls = [call for of_test in collected.values() for call in of_test]
    folder = run.report_dir
    written = Written(
        html=folder / "index.html",
        json=file,
        markdown=folder / "summary.md",
        traces=tuple(folder / "traces" / file.name for call in calls for file in call.files),
        problems=tuple(f"{call.test}: {problem}" for call in calls for problem in call.problems),
    )
    contents = {folder / "traces" / file.name: file.data for call in calls for file in call.files}
    contents[written.markdown] = markdown.summary(run, markdown.COMMENT_LIMIT).encode("utf-8", "backslashreplace")
    contents[written.html] = html.render(run, collected, data).encode("utf-8", "backslashreplace")
    write_files(contents, elsewhere=_ELSEWHERE)
    stale = [path for path in (folder / "traces").glob("*.json*") if path not in written.traces]
    remove_files((path for path in stale if OURS.fullmatch(path.name)), folder)
    return written
