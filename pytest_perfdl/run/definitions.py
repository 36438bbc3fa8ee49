"""What differs between the sides of a comparison: the definition of a test, and the source behind a cause.

`workers.definition` reads the definition of one side; here those of both sides are compared.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pytest

from pytest_perfdl.analysis.events.origins import FRAME, is_function
from pytest_perfdl.model.record import Finding
from pytest_perfdl.model.step_part import Part
from pytest_perfdl.model.units import plural, some
from pytest_perfdl.model.untrusted_files import function_bodies, parsed
from pytest_perfdl.results.verdict import Judgement, SourceDiff
from pytest_perfdl.system.git import content, git, names
from pytest_perfdl.workers.checkout import Checkout
from pytest_perfdl.workers.definition import Definition, definition_of, read_file

# The definitions of a test on both sides of a comparison: what differs, and what is said about it.


_INI = re.compile(r"^\s*[\"']?(perf_warmup|perf_steps|perf_threads|perf_loops|usefixtures)[\"']?\s*=\s*(.*?)\s*$", re.M)
"""Keys of an ini file that decide what a step is or how it is measured."""
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
        if not inside or inside not in _list_files(top, commit):
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
def _list_files(top: Path, commit: str) -> frozenset[str]:
    return frozenset(names(top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit))


def _diffs(base: Definition, head: Definition) -> Iterable[SourceDiff]:
    # Files are replaced as a whole, with the code under test that is in them.
    for part in sorted({*base.parts, *head.parts, *base.steps, *head.steps}):
        before, after = (each.parts.get(part, ()) + each.steps.get(part, ()) for each in (base, head))
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
    return SourceDiff(file, name, _cut(lines), line, called=False)


def _cut(lines: Sequence[str]) -> str:
    """The first lines of a diff as one text, and how many more there are."""
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"... {plural(len(lines) - LINES + 1, 'more line')}"]
    return "\n".join(lines)


def said_first(judgement: Judgement, changed: Redefined, whose: str) -> Judgement:
    """A judgement that says first that the two sides had different benchmarks, and which one ran."""
    own = "each side ran its own (perf_against_tests = own), so the figures may be of different work"
    ran = own if whose == "own" else "both sides ran the one of the working tree"
    said = f"{changed.what}; {ran}"
    return replace(
        judgement,
        reason=f"{said}; {judgement.reason}" if judgement.reason else said,
        integrity=(Finding("note", "redefined", said), *judgement.integrity),
        definition=changed.diffs[:_PARTS],
    )


# Source changes since a commit: the changed functions, and the diffs of those at a cause.


MOST = 3
"""Functions whose changes are given."""
LINES = 40
"""Of the changes of each one, or of each part of a definition."""
CONTEXT = 3
"""Lines around a change."""

_HUNK = re.compile(r"@@ -(?P<old>\d+)(?:,\d+)? \+(?P<new>\d+)(?:,\d+)? @@")
_UNNAMED: dict[type[ast.AST], str] = {
    ast.Lambda: "<lambda>",
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}


@dataclass(frozen=True, slots=True)
class _Function:
    """Where a function is in the working tree's text, lines from 1, its decorators included."""

    first: int
    last: int
    indent: int


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of a hunk; on the side that does not have it, `old` or `new` is the line that follows it there."""

    sign: str
    text: str
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Touched:
    """A function whose code differs between the sides, whatever its comments and its place in the file do."""

    file: str
    """Path from the top of the repository."""
    name: str
    owner: str = ""
    """The class that it is a method of."""

    def holds(self, part: Part) -> bool:
        """Whether a part of a step runs in the function: called on its lines, or in a module of its class."""
        match = FRAME.fullmatch(part.line)
        if match and is_function(match, self.file, self.name):
            return True
        modules = (each.rpartition("_") for each in part.module.split("."))
        return bool(self.owner) and any(name == self.owner and number.isdigit() for name, _, number in modules)


def touched(files: Iterable[str], checkout: Checkout) -> tuple[Touched, ...]:
    """The functions of the working tree that a checkout has otherwise, or not at all.

    Parameters
    ----------
    files
        Paths from the top of the repository: those that the test loaded.
    checkout
        The other side's code, and the working tree.
    """
    found: list[Touched] = []
    for file in files:
        if file.endswith(".py") and (source := _differing(file, checkout)) is not None:
            try:
                other = Path(checkout.path(checkout.working_tree / file)).read_bytes()
            except OSError:
                other = b""
            before = function_bodies(other)
            found += [
                Touched(file, name, owner)
                for (owner, name), code in function_bodies(source).items()
                if before.get((owner, name)) != code
            ]
    return tuple(found)


def source_diffs(lines: Iterable[str], checkout: Checkout, commit: str) -> tuple[SourceDiff, ...]:
    """Of the functions on these lines, how those differ from a commit that differ, in the order of the lines.

    A line's path is relative to some entry of `sys.path`: it is the one tracked file whose path ends with it, and
    nothing is said where several do, or none. Hunks are cut to the function. What is the same in the checkout, since
    the working tree's tests were put there, did not differ between the sides.

    Parameters
    ----------
    lines
        Of the causes, in the order of what they cost, "train.py(12): step"; empty ones are passed over.
    checkout
        The other side's code, and the working tree.
    commit
        Whose code that is.
    """
    frames = dict.fromkeys(line for line in lines if line)
    matches = [match for frame in frames if (match := FRAME.fullmatch(frame))]
    if not matches:
        return ()
    tracked = (git(checkout.working_tree, "ls-files", "-z") or "").split("\0")
    found: dict[tuple[str, str, int], SourceDiff] = {}
    for match in matches:
        file = _file(match["path"], tracked, checkout)
        source = None if file is None else _differing(file, checkout)
        if file is None or source is None:
            continue
        name = match["function"].rpartition(".")[2]
        function = _function(source, int(match["line"]), name)
        if function is None or (file, name, function.first) in found:
            continue
        if hunks := _changed_hunks(file, function, checkout.working_tree, commit):
            found[file, name, function.first] = SourceDiff(file, name, _text(hunks), _first_changed_line(hunks))
        if len(found) == MOST:
            break
    return tuple(found.values())


def uncalled_diffs(functions: Iterable[Touched], checkout: Checkout, commit: str) -> tuple[SourceDiff, ...]:
    """How touched functions differ from a commit, for causes that come from none of them: what builds a model, say.

    Parameters
    ----------
    functions
        As `touched` gives them.
    checkout, commit
        As for `source_diffs`.
    """
    found: list[SourceDiff] = []
    for each in functions:
        source = _differing(each.file, checkout)
        function = None if source is None else _function_of(source, each)
        if function is not None and (hunks := _changed_hunks(each.file, function, checkout.working_tree, commit)):
            name = f"{each.owner}.{each.name}" if each.owner else each.name
            found.append(SourceDiff(each.file, name, _text(hunks), _first_changed_line(hunks), called=False))
        if len(found) == MOST:
            break
    return tuple(found)


def _function_of(source: bytes, touched: Touched) -> _Function | None:
    """Where the only function of a class and a name is in a text."""
    found: list[_Function] = []

    def visit(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and (owner, child.name) == (
                touched.owner,
                touched.name,
            ):
                starts = [child.lineno, *(each.lineno for each in child.decorator_list)]
                found.append(_Function(min(starts), _end(child), child.col_offset))
            visit(child, child.name if isinstance(child, ast.ClassDef) else owner)

    if (tree := parsed(source)) is not None:
        visit(tree, "")
    return found[0] if len(found) == 1 else None


def _file(path: str, tracked: Sequence[str], checkout: Checkout) -> str | None:
    """The one tracked file that a path of a frame means."""
    path = path.replace("\\", "/")
    if Path(path).is_absolute():
        # The checkout may lie within the working tree.
        tops = (top for top in (checkout.root, checkout.working_tree) if Path(path).is_relative_to(top))
        inside = next((Path(path).relative_to(top).as_posix() for top in tops), None)
        return inside if inside in tracked else None
    found = [file for file in tracked if file == path or file.endswith(f"/{path}")]
    return found[0] if len(found) == 1 else None


def _differing(file: str, checkout: Checkout) -> bytes | None:
    """The working tree's text of a file that differs from, or is missing in, the baseline commit."""
    own = checkout.working_tree / file
    try:
        source = own.read_bytes()
    except OSError:
        return None
    try:
        return None if Path(checkout.path(own)).read_bytes() == source else source
    except OSError:
        return source


def _function(source: bytes, line: int, name: str) -> _Function | None:
    """The function of a name that begins at a line or holds it, or, where the text moved, the only one of that name."""
    tree = parsed(source)
    if tree is None:
        return None
    if name == "<module>":
        return _Function(1, source.count(b"\n") + 1, -1)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            starts = [each.lineno for each in node.decorator_list]
            if node.name == name:
                found.append((node.lineno, _Function(min([node.lineno, *starts]), _end(node), node.col_offset)))
        elif isinstance(node, ast.expr) and _UNNAMED.get(type(node)) == name:
            found.append((node.lineno, _Function(node.lineno, _end(node), node.col_offset)))
    there = [function for begins, function in found if line in (begins, function.first)]
    there = there or [function for _, function in found if function.first <= line <= function.last]
    chosen = there or [function for _, function in found]
    return chosen[0] if there or len(chosen) == 1 else None


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _changed_hunks(file: str, function: _Function, top: Path, commit: str) -> list[list[_Line]]:
    """The hunks that touch a function, cut to it."""
    diff = git(top, "diff-index", "--patch", "--text", f"--unified={CONTEXT}", commit, "--", file) or ""
    own = ([line for line in hunk if _belongs(line, function)] for hunk in _hunks(diff))
    return [hunk for hunk in own if any(line.sign != " " for line in hunk)]


def _text(hunks: Sequence[Sequence[_Line]]) -> str:
    return _cut([text for hunk in hunks for text in _format_hunk(hunk)])


def _first_changed_line(hunks: Sequence[Sequence[_Line]]) -> int:
    """The first line of code that was added or edited; where there is none, the line at which some was taken out."""
    changed = [line for hunk in hunks for line in hunk if line.sign != " "]
    code = [line for line in changed if line.sign == "+" and line.text.strip() and line.text.lstrip()[0] != "#"]
    return (code or changed)[0].new


def _hunks(diff: str) -> Iterator[list[_Line]]:
    hunk: list[_Line] = []
    old = new = 0
    for text in diff.split("\n"):
        if match := _HUNK.match(text):
            if hunk:
                yield hunk
            hunk, old, new = [], int(match["old"]), int(match["new"])
        elif new or old:
            # An empty line is one of context, however git is set up to write it.
            sign = text[:1] or " "
            if sign in " +-":
                hunk.append(_Line(sign, text[1:], old, new))
                old += sign in " -"
                new += sign in " +"
    if hunk:
        yield hunk


def _belongs(line: _Line, function: _Function) -> bool:
    """Whether a line is one of the function's.

    What was taken out between two lines belongs to the function if both do; before its first line if it was a
    decorator, behind its last if it stood as deep as its body.
    """
    if line.sign == "-" and line.new == function.first:
        return line.text.lstrip().startswith("@")
    if line.sign == "-" and line.new == function.last + 1:
        return bool(line.text.strip()) and len(line.text) - len(line.text.lstrip()) > function.indent
    return function.first <= line.new <= function.last


def _format_hunk(hunk: Sequence[_Line]) -> Iterator[str]:
    """A hunk's lines below a header that counts them."""
    old = sum(line.sign in " -" for line in hunk)
    new = sum(line.sign in " +" for line in hunk)
    yield f"@@ -{hunk[0].old},{old} +{hunk[0].new},{new} @@"
    yield from (f"{line.sign}{line.text}" for line in hunk)
