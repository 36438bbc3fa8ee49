"""Files of other people, damaged, and whatever reads them: run files, baselines and exemplar traces.

A case writes a mutated file where a pull request or an artifact would bring it, and calls everything that reads it:
the commands, in this process, the judge and the report. Each must end well or with a documented error, and write
nowhere but where it was told to.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).resolve().parent)]

from making import counted, record, rows, timed
from mutated_json import mutated, text_of
from traces import mutate
from unit.report import runs

from pytest_perfdl import cli
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.baseline.text import append
from pytest_perfdl.judge.kernels import select_rows
from pytest_perfdl.judge.stored_repeats import confirm
from pytest_perfdl.judge.untimed import open_times, standing
from pytest_perfdl.model.errors import BaselineError, TraceError
from pytest_perfdl.model.limits import BUILT_IN
from pytest_perfdl.model.record import Call, Record, Row
from pytest_perfdl.model.record_json import to_json
from pytest_perfdl.report import markdown, write_all
from pytest_perfdl.report.terminal import failure_text, summary_lines
from pytest_perfdl.report.traces import collect
from pytest_perfdl.trace import loads, read_exemplar, with_memory

TEST = "tests/test_gpt.py::test_step[8]"
SLUG = "cpu-epyc-8c-1t"
ENDINGS = (0, 1, 2, 3)
"""Exit codes of a command that met what it foresaw."""


class RuleError(Exception):
    """A file broke a rule that is no crash."""


@dataclass(frozen=True)
class Case:
    """One damaged file."""

    kind: str
    data: bytes


@dataclass(frozen=True)
class Place:
    """A folder for one process: the project, the artifact, and beside them what must stay as it is."""

    folder: Path

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def artifact(self) -> Path:
        return self.folder / "artifact"

    def prepare(self) -> None:
        """Make it, with a valid baseline, a valid run file and valid traces."""
        (self.project / "kept").mkdir(parents=True, exist_ok=True)
        (self.folder / "mine").write_text("mine")
        os.chdir(self.project)
        write_all(replace(_run(self), report_dir=self.artifact))
        Store(self.project, "baselines").save(measured(), {"": (self.project / "kept" / "base.json.gz").read_bytes()})

    def outside(self) -> Mapping[str, tuple[int, int]]:
        """What lies where nothing may be written, with sizes and times."""
        found = {}
        for folder, names, files in os.walk(self.folder):
            names[:] = [
                name for name in names if Path(folder, name) not in (self.project / "accepted", self.project / "report")
            ]
            for name in files:
                path = os.path.join(folder, name)  # noqa: PTH118 (a path a file takes longer than the rest of a case)
                state = os.lstat(path)
                found[path] = (state.st_size, state.st_mtime_ns)
        return found


def measured(times: tuple[float, ...] = (2_000_000.0, 2_010_000.0, 1_990_000.0), test: str = TEST) -> Record:
    """A record as a recording makes them, of one size of a scaling test."""
    count = len(times)
    series = {
        "step_time": timed(*times),
        "block_time": timed(*times),
        "ops": counted(*[12] * count),
        "peak_memory": counted(*[2**20] * count, unit="B"),
    }
    parts = [*rows(**{"aten::mm": (2, *[1_200_000] * count), "aten::add": (1, *[400_000] * count)})]
    parts += [Row("idle", "Python", 0, (400_000,) * count), Row("kernel", "void k<int, 4>(int)", 3, (300_000,) * count)]
    call = Call("", series, tuple(parts), (2_000_000,) * count, (12,) * 4)
    forward = replace(call, name="forward")
    return record(calls=(call, forward), repeats=count, test=test)


def _run(place: Place) -> runs.Run:
    kept = place.project / "kept"
    results = [
        replace(
            runs.with_traces(runs.result("regressed", TEST, blame=runs.BLAME), kept), new=measured(), base=measured()
        ),
        *(
            replace(
                runs.result("missing", TEST.replace("8", str(size))),
                new=measured((size * 1e6, size * 1.01e6), TEST.replace("8", str(size))),
            )
            for size in (2, 4, 16)
        ),
        runs.hostile(),
    ]
    return runs.run(*results, root=place.project, report_dir=place.artifact, traces="all")


def command(*words: object) -> int:
    """A `perfdl` command; its output is plain, its end foreseen."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([str(word) for word in words])
    text = out.getvalue() + err.getvalue()
    if code not in ENDINGS:
        raise RuleError(f"perfdl {words[0]} ends with {code}")
    if "\x1b" in text or "##[" in text or any(line.lstrip().startswith("::") for line in text.splitlines()):
        raise RuleError(f"perfdl {words[0]} prints what a terminal or a runner obeys")
    if code == 2 and len(err.getvalue().splitlines()) != 1:
        raise RuleError(f"perfdl {words[0]} says in other than one line why it ends: {err.getvalue()[:300]!r}")
    if "there is not enough memory" in err.getvalue():
        raise RuleError(f"perfdl {words[0]} takes all the memory")
    return code


def check_run_file(place: Place, data: bytes) -> str:
    """accept, report (alone, and with a history), diff and scaling."""
    path = place.artifact / "mutated.json"
    path.write_bytes(data)
    command("accept", path, "--all", "--dir", place.project / "accepted")
    read = command("report", path, "--out", place.project / "report") == 0
    command("report", path, place.artifact / "run.json", "--html", place.project / "report" / "page.html")
    command("diff", place.artifact / "run.json", path)
    command("scaling", "fit", path, "--axes", "batch", "-k", "test_step", "--parts")
    return "read" if read else "refused"


def check_baseline(place: Place, data: bytes) -> str:
    """The store, the judge with all that is made of a verdict, appending, list, show, diff."""
    store = Store(place.project, "report/baselines")
    path = store.path(TEST, SLUG)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    command("list", "--dir", store.base)
    command("show", "test", "--dir", store.base)
    command("diff", store.base, place.project / "baselines")
    try:
        base = store.load(TEST, SLUG)
        others = store.others(TEST, "another-key")
        store.exemplars(TEST, SLUG)
        store.repeat_seconds([TEST])
    except BaselineError as error:
        _one_line(error)
        return "refused"
    assert base is not None
    for new in (measured((2_400_000.0,)), measured()):
        judge(place, new, base, others)
        with contextlib.suppress(BaselineError):
            joined = append(base, new)
            store.save(joined, {})
            judge(place, new, joined, others)
    return "read"


def judge(place: Place, new: Record, base: Record, others: tuple[Record, ...]) -> None:
    """Judge, and say it in every way but the page."""
    for known in (base, None):
        judgement = standing(new, known, others, BUILT_IN.unpaired())
        if open_times(judgement, BUILT_IN.unpaired()):
            judgement = confirm(judgement, known, new, BUILT_IN.unpaired(), others=others)
        one = replace(runs.result("regressed", TEST), judgement=judgement, new=new, base=known)
        run = runs.run(one, root=place.project, report_dir=place.project / "report")
        text = failure_text(one, run) + "\n".join(line.text for line in summary_lines(run, 2, 100))
        if "\x1b" in text:
            raise RuleError("a control character reaches the terminal")
        markdown.summary(run, markdown.COMMENT_LIMIT)
    select_rows(new, base, BUILT_IN)


def check_exemplar(place: Place, data: bytes) -> str:
    """The traces of a report, the memory that is added to one, accept."""
    base = place.project / "kept" / "mutated.json.gz"
    new = place.project / "kept" / "new.json.gz"
    base.write_bytes(data)
    problems: list[str] = []
    for sides in ((base, new), (new, base)):
        one = replace(runs.result("regressed", TEST, blame=runs.BLAME), exemplars=(runs.Exemplars("", *sides),))
        for calls in collect(runs.run(one, traces="all")).values():
            for problem in (problem for call in calls for problem in call.problems):
                problems.append(problem)
                if "\n" in problem or "MemoryError" in problem:
                    raise RuleError(f"a problem is not one line, or takes all the memory: {problem[:300]!r}")
    try:
        with_memory(read_exemplar(base), loads(gzip.decompress(new.read_bytes())), 0, 0)
    except TraceError as error:
        _one_line(error)
    return "refused" if problems else "read"


def _one_line(error: Exception) -> None:
    if "\n" in str(error) or not str(error):
        raise RuleError(f"the refusal is not one line: {str(error)[:300]!r}")


CHECKS: dict[str, Callable[[Place, bytes], str]] = {
    "runs": check_run_file,
    "baselines": check_baseline,
    "exemplars": check_exemplar,
}


def check(place: Place, case: Case) -> str:
    """Write the file, call what reads it; whether it was "read" or "refused".

    Raises
    ------
    RuleError, Exception
        When a rule is broken, or a reader crashed.
    """
    before = place.outside()
    try:
        outcome = CHECKS[case.kind](place, case.data)
    finally:
        _tidy(place)
    if place.outside() != before:
        raise RuleError(f"written elsewhere: {sorted(set(place.outside().items()) ^ set(before.items()))[:5]}")
    return outcome


def _tidy(place: Place) -> None:
    import shutil

    for folder in (place.project / "accepted", place.project / "report"):
        shutil.rmtree(folder, ignore_errors=True)
    for path in (place.artifact / "mutated.json", place.project / "kept" / "mutated.json.gz"):
        path.unlink(missing_ok=True)


def _as_written(data: object) -> bytes:
    """A trace in the form that `trace.write` gives it, where it still has that shape: `with_memory` demands it."""
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list) or not events:
        return text_of(data)
    rest = {name: value for name, value in data.items() if name != "traceEvents"}
    head = text_of(rest)[:-1] + (b",\n" if rest else b"")
    return head + b'"traceEvents":[\n' + b",\n".join(map(text_of, events)) + b"\n]}\n"


def valid_file(kind: str, place: Place, draw: random.Random) -> bytes:
    """A file that is to be read."""
    if kind == "exemplars":
        return (place.project / "kept" / draw.choice(("base.json.gz", "new.json.gz"))).read_bytes()
    return (place.artifact / "run.json").read_bytes() if kind == "runs" else json.dumps(to_json(measured())).encode()


def case_of(kind: str, place: Place, draw: random.Random) -> Case:
    """A valid file, mutated as JSON or as bytes."""
    as_bytes = draw.random() < 0.15
    valid = valid_file(kind, place, draw)
    if kind == "exemplars":
        valid = gzip.decompress(valid)
        text = mutate(valid, draw, [valid]) if as_bytes else _as_written(mutated(json.loads(valid), draw))
        data = gzip.compress(text, 1)
        return Case(kind, mutate(data, draw, [data]) if draw.random() < 0.05 else data)
    return Case(kind, mutate(valid, draw, [valid]) if as_bytes else text_of(mutated(json.loads(valid), draw)))
