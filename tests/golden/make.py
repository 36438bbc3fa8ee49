"""The golden outputs: everything that users read, made of stored runs, traces and baselines.

    python tests/golden/make.py             # name the outputs that differ from tests/golden/expected; exit code 1 then
    python tests/golden/make.py --diff      # and show how
    python tests/golden/make.py --update    # rewrite the files

A change that is to change nothing for users leaves every file as it is; any other commits the difference, which then
says what users see of it. An output of more than `LARGEST` bytes is stored as its digest and size: of those only
that they differ can be said.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import html.parser
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from unit.report import runs  # noqa: E402 (the path comes first)
from unit.test_docs_made import SAMPLES  # noqa: E402

from pytest_perfdl.report import exports, markdown, traces  # noqa: E402
from pytest_perfdl.report import html as page  # noqa: E402
from pytest_perfdl.report.terminal import failure_text, summary_lines  # noqa: E402
from pytest_perfdl.results import run_file  # noqa: E402
from pytest_perfdl.results.run import Run  # noqa: E402
from pytest_perfdl.results.run_file import read_run  # noqa: E402

EXPECTED = HERE / "expected"
LARGEST = 130_000
"""Bytes of an output that is stored as it is."""
TRACES = ROOT / "tests" / "unit" / "trace" / "data"
RECORDED = ROOT / "tests" / "browser" / "data"

COMMANDS = {
    "trace-cpu": "trace train.json.gz",
    "trace-device": "trace device_cuda.json.gz --top 5 --advise",
    "trace-rocm": "trace device_rocm.json.gz --json",
    "trace-cpu-json": "trace train.json.gz --json",
    "trace-memory": "trace memory.json.gz --json",
    "trace-ranks": "trace rank0.json.gz rank1.json.gz rank2.json.gz rank3.json.gz",
    "trace-ranks-json": "trace device_rank0.json.gz device_rank1.json.gz --json",
    "trace-serving": "trace serving.json.gz --step-name execute_context_(\\d+).*",
    "diff": "diff train.json.gz mixer.json.gz",
    "diff-json": "diff train.json.gz mixer.json.gz --json",
    "diff-memory": "diff --memory memory.json memory.json",
    "whatif": "whatif device_cuda.json.gz",
    "whatif-json": "whatif device_cuda.json.gz --apply fused_optimizer --json",
    "scaling": "scaling fit points.csv --intrinsic layers --extrinsic batch,workers",
    "scaling-parts": "scaling fit sizes.json --parts",
    "history": "history --runs nights --metric all",
    "history-json": "history --runs nights --json",
    "history-csv": "history --runs nights --csv -",
    "qualify": "qualify --table",
    "export-json": "export memory.json --format csv",
    "ci-outputs": "ci outputs perf-report",
    "merge-usage": "merge perf-report",
    "verify": "baseline verify",
}
"""Commands of perfdl by the name of their output, in a folder with the files of tests/data and of the traces."""

PAGES = {
    "trace-page": "trace device_cuda.json.gz --html out.html",
    "ranks-page": "trace device_rank0.json.gz device_rank1.json.gz --html out.html",
    "diff-page": "diff train.json.gz mixer.json.gz --html out.html",
    "history-page": "history --runs nights --html out.html",
}
"""Commands that write a page."""


class _Text(html.parser.HTMLParser):
    """The words of a page, a line for each text, without scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipped += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._skipped and (text := " ".join(data.split())):
            self.lines.append(text)


def text_of_page(source: str) -> str:
    """What a reader sees of a page, one text a line."""
    parser = _Text()
    parser.feed(source)
    return "".join(f"{line}\n" for line in parser.lines)


def outputs() -> Iterator[tuple[str, str]]:
    """Every output with its name."""
    for name, make in RUNS.items():
        for part, text in _of_run(make()):
            yield f"{name}/{part}", text
    with SAMPLES.data() as folder:
        for path in TRACES.glob("*.json.gz"):
            shutil.copy(path, folder)
        shutil.copytree(RECORDED, folder / "perf-report")
        shutil.copytree(ROOT / "baselines", folder / "baselines")
        for name, command in COMMANDS.items():
            yield f"commands/{name}.txt", _printed(command, folder)
        for name, command in PAGES.items():
            _printed(command, folder)
            yield f"commands/{name}.txt", text_of_page((folder / "out.html").read_text(encoding="utf-8"))


def _of_run(run: Run) -> Iterator[tuple[str, str]]:
    """What a run's reports say, of every reporter."""
    yield "run.json", run_file.dump(run_file.to_json(run)).decode()
    for verbosity in (-1, 0, 1, 2):
        lines = summary_lines(run, verbosity, 100)
        yield f"terminal{verbosity:+d}.txt", "".join(f"{line.text}\n" for line in lines)
    failures = [f"{failure_text(result, run)}\n" for result in run.results if result.fails]
    yield "failures.txt", "\n".join(failures)
    yield "summary.md", markdown.summary(run, markdown.COMMENT_LIMIT)
    yield "page.txt", text_of_page(page.render(run, traces.collect(run)))
    yield "metrics.csv", exports.to_csv(run)
    yield "junit.json", json.dumps([exports.properties(result, run) for result in run.results], indent=1) + "\n"


def _of_verdicts() -> Run:
    return runs.run(*runs.each_verdict(), runs.result(test="tests/perf/test_curve.py::test", curves=(runs.curve(),)))


def _recorded(path: Path) -> Callable[[], Run]:
    return lambda: read_run(path, Path("/project/perf-report"))


RUNS: dict[str, Callable[[], Run]] = {
    "verdicts": _of_verdicts,
    "hostile": lambda: runs.run(runs.hostile()),
    "ranks": lambda: runs.run(runs.with_ranks(count=3)),
    "recorded": _recorded(RECORDED / "run.json"),
    "memory": _recorded(ROOT / "tests" / "data" / "memory.json"),
    "sizes": _recorded(ROOT / "tests" / "data" / "sizes.json"),
}


def _printed(command: str, folder: Path) -> str:
    """What a command prints, with its exit code."""
    code, text = SAMPLES.run(command.split(), folder)
    if command.startswith("scaling"):
        text = _FITTED_IN.sub(r"\1   TIME", text)
    return f"$ perfdl {command}\n{text.replace(str(folder), 'FOLDER')}exit code {code}\n"


_FITTED_IN = re.compile(r"^(  .*%)  +[\d.]+ (?:ns|µs|ms|s)$", re.MULTILINE)
_LONG_FLOAT = re.compile(r"-?\d+\.\d{9,}(?:e[+-]?\d+)?")


def stored(text: str) -> bytes:
    """What an output's file holds; of floats nine digits, as the last ones depend on the processor."""
    data = _LONG_FLOAT.sub(lambda found: f"{float(found[0]):.9g}", text).encode("utf-8", "backslashreplace")
    if len(data) <= LARGEST:
        return data
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}\n".encode()


def made() -> dict[str, bytes]:
    """What the file of each output is to hold, by name."""
    return {name: stored(text) for name, text in outputs()}


def differences(expected: Path, now: Mapping[str, bytes]) -> dict[str, str]:
    """The unified difference of each output that is not as its file says, by name; a file without an output is one."""
    files = {path.relative_to(expected).as_posix(): path.read_bytes() for path in expected.rglob("*") if path.is_file()}
    changed = [name for name in sorted({*now, *files}) if now.get(name) != files.get(name)]
    return {name: _difference(name, files.get(name, b""), now.get(name, b"")) for name in changed}


def _difference(name: str, before: bytes, after: bytes) -> str:
    sides = [side.decode("utf-8", "replace").splitlines(keepends=True) for side in (before, after)]
    return "".join(difflib.unified_diff(*sides, f"expected/{name}", f"made/{name}"))


def main(arguments: list[str] | None = None) -> int:
    """Compare or rewrite the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", help="rewrite the files")
    parser.add_argument("--diff", action="store_true", help="show the differences")
    options = parser.parse_args(arguments)
    now = made()
    changed = differences(EXPECTED, now)
    for name, difference in changed.items():
        print(difference if options.diff else f"differs: {name}")
    print(f"{len(changed)} outputs differ" if changed else "all outputs are as they were")
    if not options.update:
        return int(bool(changed))
    shutil.rmtree(EXPECTED, ignore_errors=True)
    for name, data in now.items():
        (EXPECTED / name).parent.mkdir(parents=True, exist_ok=True)
        (EXPECTED / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
