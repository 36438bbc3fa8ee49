"""What a test measures by its source, and the identity of a test.

The definition of one side; `run.definitions` compares those of both sides.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pytest

from pytest_perfdl.model.untrusted_files import parsed

# What a test measures by its source: the test, the fixtures it uses, and the names of test files that these use.
#
# Read from the text alone, without importing it, so that the definition of another commit costs a few reads. Comments,
# layout, docstrings, annotations and limits do not count. The code under test does not belong to it, except for the
# imports that name it: only test files, `conftest.py` files, and modules that these import from folders of tests. Code
# under test in those files is the function whose name `perf(...)` or `benchmark(...)` is given, with the functions and
# classes that only it uses: a slower one is a regression. Constants that it uses, such as a batch size, belong to the
# definition.


Read = Callable[[Path], "bytes | None"]
"""The content of a file of one side; `None` if it has no such file."""
Part = tuple[str, str]
"""A file, relative to the root directory, and a name in it."""

_TESTS = re.compile(r"(?:^|_)(?:tests?|bench|benchmarks?)(?:_|$)")
"""Names of folders whose modules belong to tests rather than to the code under test."""
_PERF = re.compile(r"(?:^|_)perf(?:_|$)")
"""The same for folders without `__init__.py`: a package may be called so."""
_HOOKS = ("pytest_generate_tests", "pytest_runtest_setup", "pytest_runtest_call", "pytest_pyfunc_call")
"""Hooks of a conftest or test file that decide what a test runs, or with which parameters."""
_XUNIT = frozenset(
    (
        *("setup_module", "setup_function", "setup_class", "setup_method", "setup"),
        *("teardown_module", "teardown_function", "teardown_class", "teardown_method", "teardown"),
        *("setUpModule", "setUpClass", "setUp", "asyncSetUp"),
        *("tearDownModule", "tearDownClass", "tearDown", "asyncTearDown"),
    )
)
_DEFINING = ("parametrize", "usefixtures")
"""Marks that are part of a test; limits, skips and others are not."""
_STEPS = {
    (*owner, *call): steps
    for owner in ((), ("self",))
    for steps, calls in (
        (1, (("perf",), ("perfdl",), ("benchmark",), ("benchmark", "pedantic"))),
        (2, (("perf", "compare"), ("perfdl", "compare"))),
    )
    for call in calls
}
"""How many steps a call is given first; a test case has the fixture as an attribute."""
_UNNAMED = ("ctx", "kind", "type_comment", "returns", "type_params")
"""Fields of a syntax tree that do not change what is run."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a test."""

    parts: Mapping[Part, tuple[tuple[str, ast.AST], ...]]
    """By part, its statements: each in a form without layout, and as it was read."""
    files: tuple[Path, ...]
    """Files that it was read from, the test's among them."""
    steps: Mapping[Part, tuple[tuple[str, ast.AST], ...]]
    """Code under test in these files, in the same form."""

    @property
    def forms(self) -> list[str]:
        """Everything that counts, sorted; that a fixture moved to another file does not."""
        return sorted({f"{name} {form}" for (_, name), found in self.parts.items() for form, _ in found})

    @property
    def hash(self) -> str:
        """Hash of it."""
        return hashlib.sha256("\n".join(self.forms).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def definition(file: Path, owners: Sequence[str], function: str, root: Path, read: Read) -> Definition | None:
    """The definition of a test; `None` if its file has no such test.

    Parameters
    ----------
    file, owners, function
        The test's file, the classes around it from the outside in, and the name of its function.
    root
        Root directory of pytest, to which conftest files and modules are looked for.
    read
        Reads the files of a side.
    """
    return _Search(root, read).of(file, owners, function)


@dataclass(slots=True)
class _Uses:
    """What some code uses, by name."""

    names: set[str] = field(default_factory=set)
    chains: set[tuple[str, ...]] = field(default_factory=set)
    """Attributes of names, as `common.shapes.BATCH`."""
    fixtures: set[str] = field(default_factory=set)
    """Fixtures that it asks for while it runs."""
    steps: set[tuple[str, ...]] = field(default_factory=set)
    """Names of the functions that it gives to `perf` or `benchmark`."""
    imports: dict[str, tuple[ast.Import | ast.ImportFrom, ast.alias]] = field(default_factory=dict)
    """Its own, by the name that they bind."""


@dataclass(slots=True)
class _Module:
    """A file, indexed."""

    path: Path
    marks: set[str] = field(default_factory=set)
    """Names for marks that do not count."""
    bindings: dict[str, list[tuple[ast.stmt, ast.AST]]] = field(default_factory=dict)
    """By name, the statements of the module that bind it, and what in them does."""
    effects: list[ast.stmt] = field(default_factory=list)
    """Statements that bind nothing, such as calls."""
    fixtures: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    stars: list[ast.ImportFrom] = field(default_factory=list)
    known: dict[int, tuple[ast.AST, str, _Uses]] = field(default_factory=dict)
    """Statements that were looked at, by their ids: tests share fixtures."""


class _Search:
    def __init__(self, root: Path, read: Read) -> None:
        self._root = root
        self._read = read
        self._modules: dict[Path, _Module | None] = {}
        self._parts: dict[Part, list[tuple[str, ast.AST]]] = {}
        self._tested: dict[Part, list[tuple[str, ast.AST]]] = {}
        """Functions and classes of the code under test."""
        self._steps: list[tuple[_Module, tuple[_Module, ast.ClassDef] | None, _Uses]] = []
        """What names steps; they are looked at last, when it is known what else uses their functions."""
        self._is_in_step = False
        self._seen: set[tuple[Path, int] | tuple[Path, str]] = set()
        self._files: dict[Path, None] = {}
        self._places: list[tuple[_Module, ast.ClassDef | None]] = []
        """Where fixtures are looked for, the nearest first."""

    def of(self, file: Path, owners: Sequence[str], function: str) -> Definition | None:
        module = self._module(file)
        if module is None:
            return None
        classes: list[tuple[_Module, ast.ClassDef]] = []
        for owner in owners:
            inner = _members(classes[-1][1]).get(owner, []) if classes else []
            found = None if classes else self._class(module, owner)
            if inner and isinstance(inner[0], ast.ClassDef):
                found = classes[-1][0], inner[0]
            if found is None:
                return None
            classes.append(found)
        folders = [folder for folder in file.parents if folder == self._root or self._root in folder.parents]
        conftests = [self._module(folder / "conftest.py") for folder in folders or [file.parent]]
        above = [each for each in conftests if each is not None]
        self._places = [
            *((owner, each) for owner, each in reversed(classes)),
            *((each, None) for each in (module, *above)),
            *((each, None) for top in (module, *above) for each in self._plugins(top)),
        ]
        if classes:
            if not self._member(*classes[-1], function):
                return None
            for where, around in classes:
                self._marks_of(where, around, around.decorator_list, around.name)
                for name in ("pytestmark", *sorted(_XUNIT)):
                    self._member(where, around, name)
        elif not self._name(module, function):
            return None
        for each in (module, *above):
            for name in (*_HOOKS, *(sorted(_XUNIT) if each is module else ())):
                if name in each.bindings:
                    self._name(each, name)
        self._name(module, "pytestmark")
        for place, (where, scope) in enumerate(self._places):
            for name, node in self._fixtures(where, scope):
                if _is_autouse(node):
                    self._fixture(name, place)
        self._effects()
        self._is_in_step = True
        for used, within, uses in self._steps:
            chains = {step for step in uses.steps if len(step) > 1}
            self._follow(used, within, uses, {step[0] for step in uses.steps}, chains)
        self._effects()
        # Conftest files without a part in it are of it all the same: they are what must be replaced.
        files = dict.fromkeys((file, *(each.path for each in above), *self._files))
        places = {self._place(path) for path in files}
        return Definition(
            {part: tuple(found) for part, found in self._parts.items()},
            tuple(files),
            {part: tuple(found) for part, found in self._tested.items() if part[0] in places},
        )

    def _effects(self) -> None:
        """Add statements that bind nothing, of the files that have a part in it."""
        for path in [*self._files]:
            if (module := self._modules.get(path)) is not None:
                for effect in module.effects:
                    self._node(module, "statements", effect)

    # Files

    def _module(self, path: Path) -> _Module | None:
        if path not in self._modules:
            source = self._read(path)
            self._modules[path] = None if source is None else _indexed(path, source)
        return self._modules[path]

    def _plugins(self, module: _Module) -> Iterator[_Module]:
        """Modules of fixtures that a file names in `pytest_plugins`."""
        for statement, _ in module.bindings.get("pytest_plugins", []):
            texts = (each.value for each in ast.walk(statement) if isinstance(each, ast.Constant))
            for text in texts:
                found = self._helper(module, text, 0) if isinstance(text, str) else None
                if found is not None:
                    yield found

    def _helper(self, module: _Module, name: str, level: int) -> _Module | None:
        """A module that a file imports, if it belongs to tests."""
        inside = Path(*name.split(".")) if name else Path()
        here = module.path.parent
        if level:
            tops = [([here, *here.parents])[level - 1]] if level <= len(here.parents) else []
        else:
            tops = [folder for folder in (here, *here.parents) if folder == self._root or self._root in folder.parents]
        for top in tops:
            place = top / inside
            for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
                if self._belongs(path) and (found := self._module(path)) is not None:
                    return found
        return None

    def _belongs(self, path: Path) -> bool:
        if self._root not in path.parents:
            return False
        folders = path.parent.relative_to(self._root).parts
        if any(map(_TESTS.search, folders)):
            return True
        return bool(folders and _PERF.search(folders[-1])) and self._read(path.parent / "__init__.py") is None

    # Names

    def _name(self, module: _Module, name: str) -> bool:
        """Add what a file binds to a name; false where it binds nothing."""
        if name not in module.bindings:
            return any(
                found is not None and name in found.bindings and self._name(found, name)
                for found in (self._helper(module, star.module or "", star.level) for star in module.stars)
            )
        if (module.path, name) in self._seen:
            return True
        self._seen.add((module.path, name))
        for statement, binder in module.bindings[name]:
            if isinstance(binder, ast.alias):
                inner = _import_of(statement, binder)
                if self._imported(module, inner, binder):
                    continue
                if inner is statement:
                    self._add(module, name, f"{_origin(inner, binder)} as {name}", _alone(inner, binder))
                    continue
            if name in module.marks:
                continue
            self._node(module, name, statement)
        return True

    def _imported(self, module: _Module, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
        """Add what an import binds, if it is of a module that belongs to tests; of whole modules what is used is."""
        if isinstance(statement, ast.Import):
            return self._helper(module, alias.name, 0) is not None
        found = self._helper(module, statement.module or "", statement.level)
        if found is not None and self._name(found, alias.name):
            return True
        inner = ".".join(filter(None, (statement.module, alias.name)))
        return self._helper(module, inner, statement.level) is not None

    def _chain(self, module: _Module, uses: _Uses, chain: tuple[str, ...]) -> None:
        """Add the attribute of an imported module that belongs to tests."""
        found = uses.imports.get(chain[0])
        if found is None:
            for statement, binder in module.bindings.get(chain[0], []):
                if isinstance(binder, ast.alias):
                    found = _import_of(statement, binder), binder
        if found is None:
            return
        statement, alias = found
        if isinstance(statement, ast.ImportFrom):
            names = [".".join(filter(None, (statement.module, alias.name)))]
            level, rest = statement.level, [chain[1:]]
        elif alias.asname:
            names, level, rest = [alias.name], 0, [chain[1:]]
        else:
            count = len(alias.name.split("."))
            names = [".".join(chain[:size]) for size in range(1, count + 1)]
            level, rest = 0, [chain[size:] for size in range(1, count + 1)]
        for name, left in zip(names, rest, strict=True):
            helper = self._helper(module, name, level)
            if helper is not None and left:
                self._name(helper, left[0])

    def _node(
        self, module: _Module, label: str, node: ast.AST, scope: tuple[_Module, ast.ClassDef] | None = None
    ) -> None:
        """Add a statement, and what it uses."""
        if (module.path, id(node)) in self._seen:
            return
        self._seen.add((module.path, id(node)))
        if id(node) not in module.known:
            counted = _counted(node, module.marks)
            module.known[id(node)] = node, _form(counted, module.marks), _uses(counted, module.marks)
        _, form, uses = module.known[id(node)]
        is_tested = self._is_in_step and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if is_tested:
            self._tested.setdefault((self._place(module.path), label), []).append((form, node))
        elif form != "[]":
            self._add(module, label, form, node)
        if uses.steps:
            self._steps.append((module, scope, uses))
        for statement, alias in uses.imports.values():
            self._imported(module, statement, alias)
        self._follow(module, scope, uses, uses.names, uses.chains)
        wanted = set(uses.fixtures)
        if not is_tested and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            wanted |= {argument.arg for argument in arguments}
            wanted |= _used_fixtures(node.decorator_list)
        if label.rpartition(".")[2] == "pytestmark":
            wanted |= _used_fixtures([node])
        for name in sorted(wanted):
            self._fixture(name, self._after(node, name))

    def _follow(
        self,
        module: _Module,
        scope: tuple[_Module, ast.ClassDef] | None,
        uses: _Uses,
        names: Iterable[str],
        chains: Iterable[tuple[str, ...]],
    ) -> None:
        """Add what some of the names mean that code uses."""
        for name in sorted(names):
            self._name(module, name)
        for chain in sorted(chains):
            self._chain(module, uses, chain)
            if scope is not None:
                self._member(*scope, chain[1])

    def _add(self, module: _Module, label: str, form: str, node: ast.AST) -> None:
        self._files[module.path] = None
        self._parts.setdefault((self._place(module.path), label), []).append((form, node))

    def _place(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if self._root in path.parents else path.name

    # Classes

    def _class(self, module: _Module, name: str) -> tuple[_Module, ast.ClassDef] | None:
        """The class that a name means in a file, which may import it from another one of tests."""
        for statement, binder in module.bindings.get(name, []):
            if isinstance(binder, ast.ClassDef):
                return module, binder
            if isinstance(binder, ast.alias) and isinstance(inner := _import_of(statement, binder), ast.ImportFrom):
                found = self._helper(module, inner.module or "", inner.level)
                return None if found is None else self._class(found, binder.name)
        return None

    def _member(self, module: _Module, owner: ast.ClassDef, name: str) -> bool:
        """Add a member of a class of tests, or of the classes that it is made from; false where there is none."""
        if found := _members(owner).get(name):
            for node in found:
                self._node(module, f"{owner.name}.{name}", node, (module, owner))
            return True
        for base in owner.bases:
            known = self._class(module, base.id) if isinstance(base, ast.Name) else None
            if known is not None and known[1] is not owner and self._member(*known, name):
                return True
        return False

    def _marks_of(self, module: _Module, owner: ast.ClassDef, decorators: Sequence[ast.expr], label: str) -> None:
        for decorator in _kept(decorators, module.marks):
            self._node(module, label, decorator, (module, owner))
        for name in sorted(_used_fixtures(decorators)):
            self._fixture(name, 0)

    # Fixtures

    def _fixtures(
        self, module: _Module, scope: ast.ClassDef | None
    ) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Those of a class, or of a file and the modules that it imports them from."""
        if scope is not None:
            for found in _members(scope).values():
                for node in found:
                    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (name := _fixture_name(node)):
                        yield name, node
            return
        yield from module.fixtures.items()
        for star in module.stars:
            if (helper := self._helper(module, star.module or "", star.level)) is not None:
                yield from helper.fixtures.items()
        for bound, binders in module.bindings.items():
            for statement, binder in binders:
                if isinstance(binder, ast.alias) and isinstance(statement, ast.ImportFrom):
                    helper = self._helper(module, statement.module or "", statement.level)
                    fixture = None if helper is None else helper.fixtures.get(binder.name)
                    if fixture is not None:
                        yield bound, fixture

    def _fixture(self, name: str, place: int) -> None:
        """Add the fixture of a name that is nearest, from a place on."""
        for owner, scope in self._places[place:]:
            for known, node in self._fixtures(owner, scope):
                if known == name:
                    where = self._holder(node, owner)
                    label = name if scope is None else f"{scope.name}.{name}"
                    self._node(where, label, node, (owner, scope) if scope is not None else None)
                    return

    def _holder(self, node: ast.AST, otherwise: _Module) -> _Module:
        """The file that a fixture is in: it may be imported."""
        known = (each for each in self._modules.values() if each is not None)
        return next((each for each in known if any(node is own for own in each.fixtures.values())), otherwise)

    def _after(self, node: ast.AST, name: str) -> int:
        """From which place on a fixture is looked for: one that asks for its own name means the next one."""
        for place, (owner, scope) in enumerate(self._places):
            if any(node is each and known == name for known, each in self._fixtures(owner, scope)):
                return place + 1
        return 0


# One file


@lru_cache(maxsize=256)
def _indexed(path: Path, source: bytes) -> _Module | None:
    tree = parsed(source)
    if tree is None:
        return None
    module = _Module(path)
    for statement in tree.body:
        bound = [*_bound(statement)]
        for name, binder in bound:
            module.bindings.setdefault(name, []).append((statement, binder))
            if isinstance(binder, (ast.FunctionDef, ast.AsyncFunctionDef)) and (known := _fixture_name(binder)):
                module.fixtures[known] = binder
        module.stars += [
            each for each in _own(statement) if isinstance(each, ast.ImportFrom) and each.names[0].name == "*"
        ]
        if isinstance(statement, ast.Assign) and _is_mark(statement.value):
            module.marks |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
        if not bound and not is_import and not _says_nothing(statement):
            module.effects.append(statement)
    module.marks.discard("pytestmark")
    return module


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it, without what is within its functions and classes."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


def _bound(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """Names that a statement binds, and what in it does."""
    for node in _own(statement):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name.partition(".")[0], alias
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    is_main = isinstance(statement, ast.If) and "__name__" in {
        each.id for each in ast.walk(statement.test) if isinstance(each, ast.Name)
    }
    return is_main or isinstance(statement, ast.Pass)


def _members(owner: ast.ClassDef) -> dict[str, list[ast.stmt]]:
    """The statements of a class by the names that they bind."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in owner.body:
        for name, _ in _bound(statement):
            found.setdefault(name, []).append(statement)
    return found


def _origin(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    if isinstance(statement, ast.Import):
        return f"import {alias.name}"
    return f"from {'.' * statement.level}{statement.module or ''} import {alias.name}"


def _alone(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    """The import of one name, which a statement may have among others."""
    made: ast.stmt = (
        ast.Import(names=[alias])
        if isinstance(statement, ast.Import)
        else ast.ImportFrom(module=statement.module, names=[alias], level=statement.level)
    )
    return ast.copy_location(made, statement)


# Marks and fixtures


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """The names of `a.b.c`, also where it is called; empty for other expressions."""
    node = node.func if isinstance(node, ast.Call) else node
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def _is_mark(node: ast.AST) -> bool:
    """Whether an expression is a mark that is no part of a test."""
    names = _dotted(node)
    return "mark" in names[:-1] and names[-1] not in _DEFINING


def _kept(decorators: Iterable[ast.expr], marks: Iterable[str]) -> list[ast.expr]:
    """Decorators that are part of a function, and of parameters what their ids do not say."""
    found = []
    for each in decorators:
        if _is_mark(each) or (isinstance(each, ast.Name) and each.id in marks):
            continue
        found.append(_parameters(each) if isinstance(each, ast.Call) else each)
    return found


def _parameters(call: ast.Call) -> ast.expr:
    """A call of `parametrize` without values that are in the ids of the tests: one more is no change of the others."""
    known = _dotted(call)
    if known[-1:] != ("parametrize",) or len(call.args) != 2 or any(each.arg == "ids" for each in call.keywords):
        return call
    names, values = call.args
    if not isinstance(values, (ast.List, ast.Tuple)):
        return call
    left = [value for value in values.elts if not _is_plain(value)]
    return ast.Call(func=call.func, args=[names, ast.List(elts=left, ctx=ast.Load())], keywords=call.keywords)


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_plain(node.operand)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_plain, node.elts))
    return isinstance(node, ast.Constant)


def _used_fixtures(nodes: Iterable[ast.AST]) -> set[str]:
    """Fixtures that marks ask for."""
    return {
        argument.value
        for node in nodes
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and _dotted(call)[-1:] == ("usefixtures",)
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def _fixture_decorator(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    return next((each for each in node.decorator_list if _dotted(each)[-1:] == ("fixture",)), None)


def _fixture_name(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The name of a fixture; empty for other functions."""
    decorator = _fixture_decorator(node)
    if decorator is None:
        return ""
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    named = (each.value.value for each in keywords if each.arg == "name" and isinstance(each.value, ast.Constant))
    return str(next(named, node.name))


def _import_of(statement: ast.stmt, alias: ast.alias) -> ast.Import | ast.ImportFrom:
    """The import that an alias belongs to, which may stand inside another statement."""
    imports = (each for each in ast.walk(statement) if isinstance(each, (ast.Import, ast.ImportFrom)))
    return next(each for each in imports if alias in each.names)


def _is_autouse(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorator = _fixture_decorator(node)
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    return any(
        each.arg == "autouse" and not (isinstance(each.value, ast.Constant) and not each.value.value)
        for each in keywords
    )


# Code without its layout


def _fields(node: ast.AST, marks: Iterable[str]) -> Iterator[tuple[str, object]]:
    """The fields of a node that decide what is run."""
    for name, value in ast.iter_fields(node):
        if name in _UNNAMED or value is None or value == [] or (name == "annotation" and isinstance(node, ast.arg)):
            continue
        if name == "decorator_list":
            value = _kept(value, marks)
        elif name == "body" and isinstance(value, list):
            value = [
                each for each in value if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
        yield name, value


def _counted(node: ast.AST, marks: Iterable[str]) -> object:
    """What of a statement counts: of `pytestmark` the marks that are part of a test."""
    if not (isinstance(node, ast.Assign) and [_dotted(each) for each in node.targets] == [("pytestmark",)]):
        return node
    return _kept(node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value], marks)


def _form(node: object, marks: Iterable[str]) -> str:
    """Code as text without layout, comments and docstrings; the same under every version of Python.

    >>> _form(ast.parse("x = 1  # one").body[0], ())
    "Assign(targets=[Name(id='x')],value=Constant(value=1))"
    """
    if isinstance(node, ast.AST):
        inner = ",".join(f"{name}={_form(value, marks)}" for name, value in _fields(node, marks))
        return f"{type(node).__name__}({inner})"
    if isinstance(node, list):
        return f"[{','.join(_form(each, marks) for each in node)}]"
    return repr(node)


def _uses(node: object, marks: Iterable[str]) -> _Uses:
    found = _Uses()
    left: list[object] = [node]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        if not isinstance(each, ast.AST):
            continue
        if isinstance(each, ast.Name):
            found.names.add(each.id)
        elif isinstance(each, ast.Attribute) and len(names := _dotted(each)) > 1:
            found.chains.add(names)
        elif isinstance(each, (ast.Import, ast.ImportFrom)):
            for alias in each.names:
                found.imports[alias.asname or alias.name.partition(".")[0]] = each, alias
        elif isinstance(each, ast.Call) and _dotted(each)[-1:] == ("getfixturevalue",):
            texts = (one.value for one in each.args if isinstance(one, ast.Constant))
            found.fixtures |= {text for text in texts if isinstance(text, str)}
        elif isinstance(each, ast.Call) and (count := _STEPS.get(_dotted(each))):
            steps = [one for one in each.args[:count] if isinstance(one, (ast.Name, ast.Attribute)) and _dotted(one)]
            found.steps |= {_dotted(one) for one in steps}
            left += [each.func, *(one for one in each.args if one not in steps), each.keywords]
            continue
        left += [value for _, value in _fields(each, marks)]
    return found


# The identity of a test: its definition and parameters.


def test_hash(item: pytest.Function, read: Read) -> str:
    """Identifies what a test measures: its definition (see `definition`) and its parameters.

    `read` reads the files of a side, which many tests share.
    """
    found = definition_of(item, item.config.rootpath, read)
    # A test that no statement of its file defines may be made of anything there.
    parts = [hashlib.sha256(read(item.path) or b"").hexdigest() if found is None else found.hash]
    callspec = getattr(item, "callspec", None)
    if callspec is not None:
        parts.append(callspec.id)
        simple = (str, int, float, bool, type(None))
        parts += [f"{name}={value!r}" for name, value in sorted(callspec.params.items()) if isinstance(value, simple)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def definition_of(item: pytest.Function, root: Path, read: Read) -> Definition | None:
    """The definition of a test as a side has it; `None` if it is not found in the text of its file."""
    owners = [each.name for each in item.listchain() if isinstance(each, pytest.Class)]
    return definition(item.path, owners, item.originalname, root, read)


def read_file(path: Path) -> bytes | None:
    """The content of a file; `None` if there is none."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return None
