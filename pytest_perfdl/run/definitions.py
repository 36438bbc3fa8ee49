"""The definitions of a test on both sides of a comparison: what differs, and what is said about it."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pytest

from pytest_perfdl.model.record import REDEFINED, Finding
from pytest_perfdl.model.units import some
from pytest_perfdl.results.verdict import Judgement, SourceDiff
from pytest_perfdl.system.git import content, names
from pytest_perfdl.workers.definition import Definition
from pytest_perfdl.workers.identity import definition_of, read_file

_INI = re.compile(r"^\s*[\"']?(perf_warmup|perf_steps|perf_threads|perf_loops|usefixtures)[\"']?\s*=\s*(.*?)\s*$", re.M)
"""Keys of an ini file that decide what a step is or how it is measured."""
_LINES = 40
"""Of each part's diff."""
_PARTS = 5
"""Parts whose diffs are shown."""


@dataclass(frozen=True, slots=True)
class Redefined:
    """A test whose definition is another one in the baseline commit."""

    is_new: bool
    """Whether the commit has no such test."""
    diffs: tuple[SourceDiff, ...]
    """How its parts differ."""
    files: tuple[Path, ...]
    """Files that have the working tree's definition."""

    @property
    def what(self) -> str:
        """Which parts differ, "the benchmark differs from that of the baseline commit (BATCH in tests/test_gpt.py)"."""
        if self.is_new:
            return "the baseline commit does not have this test"
        names = some([f"{diff.function} in {diff.file}" for diff in self.diffs])
        return f"the benchmark differs from that of the baseline commit ({names})"


def redefined(item: pytest.Function, top: Path, commit: str) -> Redefined | None:
    """How the definition of a test in the working tree differs from that in a commit; `None` if it does not."""
    root, ini = item.config.rootpath, item.config.inipath

    def read_base(path: Path) -> bytes | None:
        place = path.parent.resolve() / path.name
        inside = place.relative_to(top).as_posix() if top in place.parents else ""
        if not inside or inside not in _listed(top, commit):
            # What lies outside the repository is the same on both sides.
            return None if inside else read_file(path)
        return content(top, commit, inside)

    head, base = (definition_of(item, root, read) for read in (read_file, read_base))
    if head is None:
        return None
    if base is None:
        return Redefined(is_new=True, diffs=(), files=head.files)
    settings = () if ini is None else _settings(ini, root, read_file(ini), read_base(ini))
    # A name that only moved to another file is the same.
    diffs = (*(_diffs(base, head) if base.forms != head.forms else ()), *settings)
    # Conftest files of the commit alone are among those to replace.
    return Redefined(is_new=False, diffs=diffs, files=(*head.files, *base.files)) if diffs else None


@lru_cache(maxsize=8)
def _listed(top: Path, commit: str) -> frozenset[str]:
    return frozenset(names(top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit))


def _diffs(base: Definition, head: Definition) -> Iterable[SourceDiff]:
    for part in sorted({*base.parts, *head.parts}):
        before, after = base.parts.get(part, ()), head.parts.get(part, ())
        if [form for form, _ in before] == [form for form, _ in after]:
            continue
        texts = ("\n".join(ast.unparse(node) for _, node in each) for each in (before, after))
        line = next((node.lineno for _, node in after if isinstance(node, (ast.stmt, ast.expr))), 0)
        yield _diff(*part, *texts, line=line)


def _settings(ini: Path, root: Path, head: bytes | None, base: bytes | None) -> Iterable[SourceDiff]:
    """Keys of the ini file that differ; a commit without the file gets the working tree's."""
    if head is None or base is None:
        return ()
    before, after = (dict(_INI.findall(each.decode(errors="replace"))) for each in (base, head))
    file = ini.relative_to(root).as_posix() if root in ini.parents else ini.name
    return [
        _diff(file, key, *(f"{key} = {each[key]}" if key in each else "" for each in (before, after)))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def _diff(file: str, name: str, before: str, after: str, *, line: int = 0) -> SourceDiff:
    lines = [*difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)][2:]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"... {len(lines) - _LINES + 1} more lines"]
    return SourceDiff(file, name, "\n".join(lines), line, called=False)


def said_first(judgement: Judgement, changed: Redefined, whose: str) -> Judgement:
    """A judgement that says first that the two sides had different benchmarks, and which one ran."""
    own = "each side ran its own (perf_against_tests = own), so the figures may be of different work"
    ran = own if whose == "own" else "both sides ran the one of the working tree"
    said = f"{changed.what}; {ran}"
    return replace(
        judgement,
        reason=f"{said}; {judgement.reason}" if judgement.reason else said,
        integrity=(Finding("note", REDEFINED, said), *judgement.integrity),
        definition=changed.diffs[:_PARTS],
    )
