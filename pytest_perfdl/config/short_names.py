"""The short names `--perf...`, `perf_...`, marker `perf` and fixture `perf`, used unless another plugin defines them.

Projects may have options, ini keys, markers and fixtures with these names, and must run unchanged when this plugin is
installed. So only `--perfdl...` and `perfdl_...` are registered with pytest. Before conftest files are loaded,
`--perf...` on the command line is replaced by `--perfdl...`, except options that another plugin has registered; after
that, options that a conftest file has registered are changed back. Short ini keys are added if they are still free, and
read only while no other plugin overwrites them. If there are two fixtures named `perf`, the other one takes precedence;
a marker `perf` that the project registers belongs to the project.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import pytest

from pytest_perfdl.system import pytest_internals
from pytest_perfdl.system.pytest_internals import forget_ini, ini_keys, parser_of

SHORT, LONG = "perf", "perfdl"
"""Names of the marker and of the fixture."""
BENCHMARK = "benchmark"
"""Name of pytest-benchmark's fixture and marker, which this plugin registers only with `--perf-benchmarks`."""
SHARED = "benchmarks"
"""Name of the test whose cases are the tests of a file that share processes: `tests/test_speed.py::benchmarks`."""
_FIXTURES_FROM = "pytest_perfdl.plugin"


def long_name(short: str) -> str:
    """The long spelling, which no other plugin uses.

    >>> long_name("--perf-update"), long_name("--no-perf"), long_name("perf_steps")
    ('--perfdl-update', '--no-perfdl', 'perfdl_steps')
    """
    return short.replace("perf", "perfdl", 1)


# Options


class _Replaced(str):
    """An argument in its long spelling, with the original in `written`."""

    __slots__ = ("written",)
    written: str


def lengthen(args: list[str], flags: Iterable[str], parser: pytest.Parser) -> bool:
    """Replace short spellings of `flags` before `--` in the arguments (in place), unless another plugin defines them.

    Returns whether anything was replaced.
    """
    free = set(flags) - registered(parser)
    end = args.index("--") if "--" in args else len(args)
    replaced = False
    for place, argument in enumerate(args[:end]):
        flag, equals, value = argument.partition("=")
        if flag in free:
            args[place] = longer = _Replaced(long_name(flag) + equals + value)
            longer.written = argument
            replaced = True
    return replaced


def restore(args: list[str], parser: pytest.Parser) -> None:
    """Restore the original arguments (in place) whose spelling has been registered in the meantime."""
    taken = registered(parser)
    for place, argument in enumerate(args):
        if isinstance(argument, _Replaced) and argument.written.partition("=")[0] in taken:
            args[place] = argument.written


def registered(parser: pytest.Parser) -> set[str]:
    """All registered option strings."""
    return {name for option in pytest_internals.options(parser) for name in option.names()}


def destinations(parser: pytest.Parser) -> set[str]:
    """Attribute names of all registered options."""
    return {option.dest for option in pytest_internals.options(parser)}


def loads_late(pluginmanager: pytest.PytestPluginManager) -> bool:
    """Whether a plugin that is loaded now is too late for `lengthen`.

    True if a conftest file loads it (`pytest_plugins`), or if arguments are already parsed, as with `-p` in a worker.
    """
    config = pluginmanager.get_plugin("pytestconfig")
    conftest = any(name.endswith("conftest.py") for name, _ in pluginmanager.list_name_plugin())
    return conftest or hasattr(getattr(config, "option", None), "file_or_dir")


def clashes(config: pytest.Config, flags: Iterable[str]) -> dict[str, str]:
    """Short option names that another plugin has registered, with that plugin's name."""
    taken = registered(parser_of(config))
    return {flag: _owner(config, flag) for flag in flags if flag in taken}


def _owner(config: pytest.Config, flag: str) -> str:
    """Who registered an option, if the source shows it: the path of a conftest file or the name of a plugin."""
    for implementation in config.hook.pytest_addoption.get_hookimpls():
        try:
            source = inspect.getsource(implementation.function)
        except (OSError, TypeError):
            continue
        if f'"{flag}"' in source or f"'{flag}'" in source:
            name = str(implementation.plugin_name)
            return name.removeprefix(f"{config.rootpath}/")
    return "another plugin"


# Ini keys


def add_ini(parser: pytest.Parser, name: str, text: str, kind: Any) -> None:
    """Register an ini key that is still free."""
    if name not in ini_keys(parser):
        parser.addini(name, _OURS + text, type=kind, default=None)


def read_ini(config: pytest.Config, short: str) -> Any:
    """The value of an ini key: long name, else short name if this plugin owns it; `None` if not given."""
    value = config.getini(long_name(short))
    if value is not None or not ini_keys(parser_of(config)).get(short, ("",))[0].startswith(_OURS):
        return value
    value = config.getini(short)
    # A conftest file deeper down may still register the name with another type, and must not get our value.
    forget_ini(config, short)
    return value


_OURS = "(pytest-perfdl) "


# Markers


def markers(config: pytest.Config) -> tuple[str, ...]:
    """Names of the markers that make a test a perf test.

    `perfdl`, and the one named in ini `perf_marker`; if that is not set, `perf`, unless the project registers a marker
    with that name.
    """
    named = read_ini(config, "perf_marker")
    if named:
        return LONG, str(named)
    return (LONG,) if foreign_marker(config) else (LONG, SHORT)


def foreign_marker(config: pytest.Config) -> bool:
    """Whether the project or another plugin registers a marker `perf`."""
    lines = [line for line in config.getini("markers") if "(pytest-perfdl)" not in line]
    return any(line.partition(":")[0].partition("(")[0].strip() == SHORT for line in lines)


def marks(item: pytest.Item, names: Sequence[str], keywords: Iterable[str]) -> list[pytest.Mark]:
    """Marks of an item with these names, outermost first: a class's after those of its bases, a parameter's last.

    If the project registers a marker `perf`, its marks count on tests that use this plugin's fixture, provided they
    have only keywords of this plugin: such projects register the marker to run without this plugin too.
    """
    known = frozenset(keywords)
    redundant = tuple(names) == (LONG,) and uses_fixture(item)
    return [
        mark
        for node in item.listchain()
        for mark in _own_marks(node)
        if mark.name in names or (redundant and mark.name == SHORT and not mark.args and known.issuperset(mark.kwargs))
    ]


def _own_marks(node: Any) -> list[pytest.Mark]:
    """The marks of one node, outermost first; pytest lists the innermost decorator first, and bases before classes."""
    later: dict[int, int] = {}
    if isinstance(node, pytest.Class):
        for place, each in enumerate(reversed(node.obj.__mro__)):
            later |= dict.fromkeys(_identities(vars(each).get("pytestmark", ())), place)
    if callspec := getattr(node, "callspec", None):
        later |= dict.fromkeys(_identities(callspec.marks), 1)
    outermost_first = node.own_markers[::-1]
    return sorted(outermost_first, key=lambda mark: later.get(id(mark), 0))


def _identities(marks: Any) -> list[int]:
    """Identities of marks or decorators; a class may have a single one instead of a list."""
    return [id(getattr(each, "mark", each)) for each in (marks if isinstance(marks, (list, tuple)) else [marks])]


# Fixtures


def uses_fixture(item: pytest.Item) -> bool:
    """Whether an item uses this plugin's fixture, under any of its names."""
    return any(_uses_ours(item, name) for name in (SHORT, LONG, BENCHMARK))


def uses_benchmark(item: pytest.Item) -> bool:
    """Whether an item uses a fixture `benchmark` that is this plugin's."""
    return _uses_ours(item, BENCHMARK)


def _uses_ours(item: Any, name: str) -> bool:
    """Whether an item uses the fixture with that name, and it is this plugin's, or overrides and uses it."""
    if name not in getattr(item, "fixturenames", ()):
        return False
    for function, arguments in pytest_internals.fixture_functions(item, name):
        if function.__module__ == _FIXTURES_FROM:
            return True
        if name not in arguments:
            return False
    return False


def has_fixture(pluginmanager: pytest.PytestPluginManager) -> bool:
    """Whether a registered plugin defines a fixture `perf`."""
    return any(_defines(plugin) for plugin in pluginmanager.get_plugins())


def _defines(plugin: object) -> bool:
    members = vars(plugin if isinstance(plugin, ModuleType) else type(plugin))
    return any(pytest_internals.fixture_name(name, member) == SHORT for name, member in list(members.items()))
