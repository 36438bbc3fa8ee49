"""The names of a report's trace files, and of which calls the report has them.

A call with an exemplar on both sides gives four files, `<name>.base.json.gz`, `.new.json.gz`, `.diff.json.gz` with both
steps in one Chrome trace, and `.speedscope.json` with both for speedscope. Of a test with ranks these are the first
rank's, and `.ranks.json.gz` and `.base-ranks.json.gz` have the step of all ranks of a side in one Chrome trace.

Only names: the run file needs them without reading traces. `report.traces` has the contents.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pytest_perfdl.results.run import Exemplars, Result, Run

Role = Literal["base", "new", "diff", "speedscope", "base_ranks", "ranks"]
_ENDINGS: dict[Role, str] = {
    "base": ".base.json.gz",
    "new": ".new.json.gz",
    "diff": ".diff.json.gz",
    "speedscope": ".speedscope.json",
    "base_ranks": ".base-ranks.json.gz",
    "ranks": ".ranks.json.gz",
}
TRACE_PATH = r"^traces/[\w.-]{1,200}\.json\.gz\Z"
"""The path of a Chrome trace, relative to the run file."""
OURS = re.compile(r"[\w.-]+-[0-9a-f]{8}\.((base|new|diff|(base-)?ranks)\.json\.gz|speedscope\.json)")
"""Names that `stem` makes; only such files are cleared out of an older report."""
_NAME_BYTES = 80
_PLAIN = frozenset({"unchanged", "new", "unmeasured"})
"""Verdicts of tests whose traces have nothing to show, unless all are wanted."""


def stem(test: str, call: str) -> str:
    """A file name for a call: readable, the same everywhere, distinct also where case does not count.

    >>> stem("tests/test_gpt.py::test_step[bf16]", "")
    'test_step-bf16-e983db5a'
    """
    digest = hashlib.sha256(f"{test}\0{call}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    words = re.findall(r"[A-Za-z0-9_.]+", test.rpartition("::")[2] + (f" {call}" if call else ""))
    return f"{'-'.join(words)[:_NAME_BYTES].strip('.-') or 'test'}-{digest}"


def pattern(result: Result, exemplars: Exemplars) -> str:
    """The names of a call's files in a shell's notation, "test_step-1f0c.*"."""
    roles = roles_of(exemplars)
    return file_name(result.id, exemplars.call, roles[0]) if len(roles) == 1 else f"{stem(result.id, exemplars.call)}.*"


def roles_of(exemplars: Exemplars) -> tuple[Role, ...]:
    """The files of a call that has these exemplars."""
    one: tuple[Role, ...] = ("base",) if exemplars.base else ("new",) if exemplars.new else ()
    both: tuple[Role, ...] = ("base", "new", "diff", "speedscope")
    return (*(both if exemplars.base and exemplars.new else one), *(role for role, _ in traces_of_ranks(exemplars)))


def traces_of_ranks(exemplars: Exemplars) -> Iterator[tuple[Role, Sequence[Path]]]:
    """The files with all ranks of a call, and what each is made of."""
    if exemplars.base_ranks:
        yield "base_ranks", exemplars.base_ranks
    if exemplars.new_ranks:
        yield "ranks", exemplars.new_ranks


def file_name(test: str, call: str, role: Role) -> str:
    """The name of a call's file."""
    return stem(test, call) + _ENDINGS[role]


def paths_of(result: Result, exemplars: Exemplars) -> dict[str, str]:
    """The paths of a call's files relative to the run file, by role."""
    return {role: f"traces/{file_name(result.id, exemplars.call, role)}" for role in roles_of(exemplars)}


def kept(run: Run, result: Result) -> tuple[Exemplars, ...]:
    """The exemplars of a test that the run's report holds."""
    wanted = run.traces == "all" or (run.traces == "regressed" and result.judgement.verdict not in _PLAIN)
    return result.exemplars if wanted else ()
