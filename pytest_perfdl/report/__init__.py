"""Reports: the room where a judged run becomes something to read.

`run` holds the one value that every report is made from. Each reporter is a plain function over it and none
measures or judges: `terminal` (summary, text of a failure), `html` (the self-contained page), `json` (the run
file), `markdown` (step summary and pull-request comment), `github` (annotations), `junit` (properties) and
`chrome` (both sides' steps in one trace). `words` and `figures` hold the sentences and number formats that
they share. `write_all` writes the report folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.report.files import ReportError, remove_files, write_files
from pytest_perfdl.report.run import Run

__all__ = ["ReportError", "Written", "write_all"]


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
    """Write `index.html`, `run.json`, `summary.md` and `traces/` into `run.report_dir`.

    Traces that an earlier report left in the folder are removed, other files are not touched.

    Raises
    ------
    ReportError
        When the folder is not writable or the disk is full; nothing is then left half-written.
    """
    # Imported here so that reading `report.run` does not load jinja2.
    from pytest_perfdl.report import html, json, markdown, traces

    collected = traces.collect(run)
    calls = [call for of_test in collected.values() for call in of_test]
    folder = run.report_dir
    written = Written(
        html=folder / "index.html",
        json=folder / "run.json",
        markdown=folder / "summary.md",
        traces=tuple(folder / "traces" / file.name for call in calls for file in call.files),
        problems=tuple(f"{call.test}: {problem}" for call in calls for problem in call.problems),
    )
    contents = {folder / "traces" / file.name: file.data for call in calls for file in call.files}
    contents[written.markdown] = markdown.summary(run, markdown.COMMENT_LIMIT).encode("utf-8", "backslashreplace")
    data = json.to_json(run)
    contents[written.json] = json.dump(data)
    contents[written.html] = html.render(run, collected, data).encode("utf-8", "backslashreplace")
    write_files(contents)
    stale = [path for path in (folder / "traces").glob("*.json.gz") if path not in written.traces]
    remove_files(path for path in stale if traces.OURS.fullmatch(path.name))
    return written
