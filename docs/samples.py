"""Remakes the samples of output in the documentation: what the program prints of recorded data today.

    python docs/samples.py            # rewrite them
    python docs/samples.py --check    # say which are not what the program prints; exit code 1 then

A sample stands between `<!-- sample: NAME -->` and `<!-- end -->`, in a fence. A name of `RUNS` is of pytest: what a
recorded run says. The name `command` is for what the fence's first line, a command of perfdl behind `$ `, prints in a
folder with the files of tests/data (its record.py makes them) and those that earlier commands of the document wrote.
`lines=1-4,9-` behind the name are the lines that are shown, of the command's output or of the run's text; `...` stands
for what is left out. `<!-- exit: 2 -->` on a line before the fence says that the command ends with that exit code.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from pytest_perfdl.cli import main as perfdl
from pytest_perfdl.model.errors import ReportError
from pytest_perfdl.report.terminal import FAILURE_WIDTH, failure_text, summary_lines
from pytest_perfdl.results.run import Run
from pytest_perfdl.results.run_file import read_run

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "tests" / "browser" / "data" / "run.json"
DATA = ROOT / "tests" / "data"
WIDTH = 100
FILES = (
    "README.md",
    "examples/README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
SAMPLE = re.compile(
    r"(?P<head><!-- sample: (?P<name>[\w-]+)(?: lines=(?P<lines>[\d,-]+))? -->\n(?P<notes>(?:<!-- .* -->\n)*)```\w*\n)"
    r"(?P<body>.*?)(?P<tail>```\n<!-- end -->)",
    re.DOTALL,
)
_EXIT = re.compile(r"<!-- exit: (\d+) -->")


class SampleError(Exception):
    """A sample that cannot be made; the message says which and why."""


def rewritten(text: str) -> str:
    """The document with today's samples.

    Raises
    ------
    SampleError
    """
    with data() as folder:
        return SAMPLE.sub(lambda found: found["head"] + made(found, folder) + found["tail"], text)


@contextlib.contextmanager
def data() -> Iterator[Path]:
    """A folder, for a while, with a copy of the recorded data."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        for path in DATA.glob("*"):
            if path.is_file() and path.suffix != ".py":
                shutil.copy(path, folder)
        shutil.copytree(DATA / "nights", folder / "nights")
        yield folder


def made(found: Mapping[str, str], folder: Path) -> str:
    """What belongs into the fence of a sample.

    Raises
    ------
    SampleError
    """
    name, notes, body = found["name"], found["notes"], found["body"]
    if name != "command":
        return selected(_of_run(name, folder), found["lines"])
    line = body.partition("\n")[0]
    if not line.startswith("$ perfdl "):
        raise SampleError(f"a sample's first line is to be a command of perfdl behind '$ ', not {line!r}")
    expected = _EXIT.search(notes)
    output = printed(shlex.split(line[2:], comments=True)[1:], folder, int(expected[1]) if expected else 0)
    return f"{line}\n{selected(output, found['lines'])}"


def printed(words: list[str], folder: Path, expected: int) -> str:
    """What a command of perfdl writes to the terminal.

    Raises
    ------
    SampleError
        When it ends otherwise than expected.
    """
    code, output = run(words, folder)
    if code != expected:
        raise SampleError(f"perfdl {shlex.join(words)} ended with exit code {code}: {output}")
    return output


def run(words: list[str], folder: Path) -> tuple[int, str]:
    """A command's exit code, and what it writes to the terminal."""
    output = io.StringIO()
    with (
        _inside(folder),
        mock.patch.dict(os.environ, COLUMNS=str(WIDTH)),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        code = perfdl(words)
    return code, output.getvalue()


def selected(output: str, lines: str | None) -> str:
    """The lines that are to be shown, `...` for what is left out.

    Raises
    ------
    SampleError
        When there are no such lines.
    """
    every = output.splitlines()
    if lines is None:
        return "".join(f"{line}\n" for line in every)
    shown: list[str] = []
    last = 0
    for span in lines.split(","):
        first, dash, end = span.partition("-")
        begin, stop = int(first), int(end or len(every)) if dash else int(first)
        if not last < begin <= stop <= len(every):
            raise SampleError(f"lines={lines} of {len(every)} lines: {span} is not behind line {last}")
        shown += [*(["..."] if begin > last + 1 else []), *every[begin - 1 : stop]]
        last = stop
    return "".join(f"{line}\n" for line in [*shown, *(["..."] if last < len(every) else [])])


def _of_run(name: str, folder: Path) -> str:
    if name not in RUNS:
        raise SampleError(f"there is no sample {name!r}, only command, {', '.join(RUNS)}")
    path, say = RUNS[name]
    try:
        with _inside(folder):
            return say(read_run(path, folder / "perf-report"))
    except ReportError as error:
        raise SampleError(str(error)) from error


def _failure(run: Run) -> str:
    failing = next(result for result in run.results if result.fails)
    return failure_text(failing, run)


def _verbose(run: Run) -> str:
    return "".join(f"{line.text}\n" for line in summary_lines(run, 1, FAILURE_WIDTH))


def _curve(run: Run) -> str:
    """The test with the verdict on a curve."""
    return failure_text(next(result for result in run.results if result.curves), run)


RUNS = {
    "failure": (RUN, _failure),
    "tutorial": (DATA / "tutorial" / "run.json", _failure),
    "memory": (DATA / "memory.json", _verbose),
    "curve": (DATA / "sizes.json", _curve),
}
"""Recorded runs of pytest, and what is shown of each."""


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main() -> int:
    """Rewrite or check every file."""
    stale = []
    for name in FILES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        try:
            today = rewritten(text)
        except SampleError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        if today != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(today, encoding="utf-8")
    print(f"not what the program prints: {', '.join(stale)}" if stale else "all samples are what the program prints")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
