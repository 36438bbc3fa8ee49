"""The short names `--perf...`, `perf_...`, marker `perf` and fixture `perf`: ours, unless somebody else has them.

Projects had options, ini keys, markers and fixtures of these names before this plugin was installed beside them, and
must run as they did. What pytest registers is therefore `--perfdl...` and `perfdl_...` alone. Before conftest files are
loaded, `--perf...` on the command line becomes `--perfdl...`, except for what another plugin has registered; afterwards
what a conftest file has registered becomes `--perf...` again, since it was meant for that. Short ini keys are added
where nobody had them by then, and read only as long as nobody overwrites them. Of two fixtures called `perf` the other
one wins; a marker `perf` that the project registers itself is the project's.
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
_FIXTURES_FROM = "pytest_perfdl.plugin"


def long_name(short: str) -> str:
    """The spelling that clashes with nobody's.

    >>> long_name("--perf-update"), long_name("--no-perf"), long_name("perf_steps"), long_name("verbosity_perf")
    ('--perfdl-update', '--no-perfdl', 'perfdl_steps', 'verbosity_perfdl')
    """
    return short.replace("perf", "perfdl", 1)


# Options


class _Replaced(str):
    """An argument in its long spelling that knows how it was written."""

    __slots__ = ("written",)
    written: str


def lengthen(args: list[str], flags: Iterable[str], parser: pytest.Parser) -> bool:
    """Replace short spellings of `flags` in the arguments (in place), before `--`, where nobody has registered them.

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
    """Write arguments as they were written (in place) where somebody has registered that spelling meanwhile."""
    taken = registered(parser)
    for place, argument in enumerate(args):
        if isinstance(argument, _Replaced) and argument.written.partition("=")[0] in taken:
            args[place] = argument.written


def registered(parser: pytest.Parser) -> set[str]:
    """Every option string that somebody has registered."""
    return {name for option in pytest_internals.options(parser) for name in option.names()}


def destinations(parser: pytest.Parser) -> set[str]:
    """Where the values of all registered options are kept."""
    return {option.dest for option in pytest_internals.options(parser)}


def loads_late(pluginmanager: pytest.PytestPluginManager) -> bool:
    """Whether a plugin that is loaded now comes too late for `lengthen`.

    A conftest file asks for it (`pytest_plugins`), or arguments are parsed already, as for `-p` in a worker process.
    """
    config = pluginmanager.get_plugin("pytestconfig")
    conftest = any(name.endswith("conftest.py") for name, _ in pluginmanager.list_name_plugin())
    return conftest or hasattr(getattr(config, "option", None), "file_or_dir")


def clashes(config: pytest.Config, flags: Iterable[str]) -> dict[str, str]:
    """Short spellings that somebody else has registered, and who that is."""
    taken = registered(parser_of(config))
    return {flag: _owner(config, flag) for flag in flags if flag in taken}


def _owner(config: pytest.Config, flag: str) -> str:
    """Who registered an option, as far as source tells: the path of a conftest file or the name of a plugin."""
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
    """Register an ini key that nobody has registered yet."""
    if name not in ini_keys(parser):
        parser.addini(name, _OURS + text, type=kind, default=None)


def read_ini(config: pytest.Config, short: str) -> Any:
    """The value of an ini key under its long name, or under the short one while that is ours; `None` when not given."""
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

    `perfdl`, and the one that ini `perf_marker` names; without that `perf`, unless the project registers a marker of
    that name itself.
    """
    named = read_ini(config, "perf_marker")
    if named:
        return LONG, str(named)
    return (LONG,) if foreign_marker(config) else (LONG, SHORT)


def foreign_marker(config: pytest.Config) -> bool:
    """Whether somebody else registers a marker `perf`."""
    lines = [line for line in config.getini("markers") if "(pytest-perfdl)" not in line]
    return any(line.partition(":")[0].partition("(")[0].strip() == SHORT for line in lines)


def marks(item: pytest.Item, names: Sequence[str], keywords: Iterable[str]) -> list[pytest.Mark]:
    """An item's marks of these names, outermost first: a class's after those of its bases, a parameter's last.

    On a test that uses our fixture also those marks `perf` of a project that registers the marker itself which say
    nothing but what ours may say: such projects list the marker so that they run without this plugin too.
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
    """The marks of one node, outermost first; pytest has the innermost decorator first, and bases before classes."""
    later: dict[int, int] = {}
    if isinstance(node, pytest.Class):
        for place, each in enumerate(reversed(node.obj.__mro__)):
            later |= dict.fromkeys(_identities(vars(each).get("pytestmark", ())), place)
    if callspec := getattr(node, "callspec", None):
        later |= dict.fromkeys(_identities(callspec.marks), 1)
    outermost_first = node.own_markers[::-1]
    return sorted(outermost_first, key=lambda mark: later.get(id(mark), 0))


def _identities(marks: Any) -> list[int]:
    """Of marks or decorators, of which a class may have one alone."""
    return [id(getattr(each, "mark", each)) for each in (marks if isinstance(marks, (list, tuple)) else [marks])]


# Fixtures


def uses_fixture(item: pytest.Item) -> bool:
    """Whether an item asks for this plugin's fixture, under either name, and gets it."""
    return any(name in getattr(item, "fixturenames", ()) and _resolves_to_ours(item, name) for name in (SHORT, LONG))


def _resolves_to_ours(item: Any, name: str) -> bool:
    """Whether the fixture of that name is ours, or one that overrides ours and asks for it."""
    for function, arguments in pytest_internals.fixture_functions(item, name):
        if function.__module__ == _FIXTURES_FROM:
            return True
        if name not in arguments:
            return False
    return False


def has_fixture(pluginmanager: pytest.PytestPluginManager) -> bool:
    """Whether a registered plugin has a fixture `perf`."""
    return any(_defines(plugin) for plugin in pluginmanager.get_plugins())


def _defines(plugin: object) -> bool:
    members = vars(plugin if isinstance(plugin, ModuleType) else type(plugin))
    return any(pytest_internals.fixture_name(name, member) == SHORT for name, member in list(members.items()))
