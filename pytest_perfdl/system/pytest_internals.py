"""Everything used of pytest 8.0 to 9.2 without a public name; changes in a pytest release are fixed here."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import sys
import types
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import TerminalRepr
from _pytest.assertion.rewrite import AssertionRewritingHook

__all__ = [
    "TerminalRepr",
    "complete_subtest",
    "config_of",
    "entry_point_plugins",
    "find_ini",
    "fixture_functions",
    "fixture_name",
    "forget_ini",
    "import_plugins",
    "ini_keys",
    "is_at_line_start",
    "keep_around",
    "option_actions",
    "options",
    "parse_early",
    "parser_of",
    "plain_parser",
    "run_phases",
    "tear_down_for",
    "terminal_encoding",
    "terminal_width",
    "wide_parameters",
]


# The command line and the ini file


def parser_of(config: pytest.Config) -> pytest.Parser:
    """The parser with all options that plugins and conftest files have registered."""
    private: Any = config
    parser: pytest.Parser = private._parser
    return parser


def plain_parser() -> pytest.Parser:
    """A parser with pytest's own options alone."""
    from _pytest.config import get_config

    return parser_of(get_config())


def options(parser: pytest.Parser) -> list[Any]:
    """Every option that is registered."""
    private: Any = parser
    # The anonymous group is among the others only since pytest 9.
    groups = {id(group): group for group in (*private._groups, private._anonymous)}
    return [option for group in groups.values() for option in group.options]


def option_actions(config: pytest.Config) -> Mapping[str, Any]:
    """The actions of argparse by option string, once the command line was parsed."""
    private: Any = parser_of(config)
    actions: Mapping[str, Any] = private.optparser._option_string_actions
    return actions


def parse_early(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> None:
    """Parse the arguments again, for what pytest decides by them before conftest files are loaded.

    Raises
    ------
    pytest.UsageError
    """
    private: Any = config
    early = parser.parse_known_args(args, namespace=copy.copy(config.option))
    early.confcutdir = private.known_args_namespace.confcutdir
    private.known_args_namespace = early


def ini_keys(parser: pytest.Parser) -> Mapping[str, tuple[Any, ...]]:
    """Help text first, by ini key that is registered."""
    private: Any = parser
    found: Mapping[str, tuple[Any, ...]] = private._inidict
    return found


def forget_ini(config: pytest.Config, key: str) -> None:
    """Have the value of an ini key read again: it may be registered with another type later."""
    private: Any = config
    private._inicache.pop(key, None)


def find_ini(folder: Path) -> tuple[Path, Path | None, Mapping[str, Any]]:
    """The root folder of the project that a folder is in, its ini file, and what that says.

    Raises
    ------
    pytest.UsageError, OSError, UnicodeDecodeError
        When the ini file cannot be read.
    """
    from _pytest.config.findpaths import determine_setup

    # pytest 9 has one argument more.
    given: dict[str, Any] = {"inifile": None, "args": [], "rootdir_cmd_arg": None, "invocation_dir": folder}
    given |= {name: None for name in inspect.signature(determine_setup).parameters if name not in given}
    root, ini, values, *_ = determine_setup(**given)
    # pytest 9 keeps where a value comes from beside it.
    return root, ini, {key: getattr(value, "value", value) for key, value in values.items()}


def entry_point_plugins(config: pytest.Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules of the plugins that are there because they are installed, and whose assertions pytest rewrites."""
    plugins = (plugin for plugin, _ in config.pluginmanager.list_plugin_distinfo())
    modules = dict.fromkeys(plugin.__name__ for plugin in plugins if isinstance(plugin, types.ModuleType))
    private: Any = config.pluginmanager
    return tuple(modules), tuple(sorted(getattr(private.rewrite_hook, "_must_rewrite", ())))


def import_plugins(modules: Sequence[str], rewritten: Collection[str]) -> None:
    """Import pytest's own plugins, and these modules of others as pytest does, with their assertions rewritten.

    What cannot be imported is left to pytest, which says why.
    """
    from _pytest.assertion import install_importhook
    from _pytest.config import get_config

    hook: Any = install_importhook(get_config())
    hook._must_rewrite.update(rewritten)
    try:
        for name in modules:
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
    finally:
        sys.meta_path.remove(hook)


def config_of(values: Mapping[str, Any], args: Sequence[str]) -> pytest.Config:
    """The configuration that these option values make, without a command line.

    A forked process inherits packages of plugins that its parent imported. pytest would warn that their assertions
    cannot be rewritten, which `filterwarnings = error` makes an error.
    """
    hook: Any = AssertionRewritingHook
    warn = hook._warn_already_imported
    hook._warn_already_imported = lambda *_: None
    try:
        config: pytest.Config = pytest.Config.fromdictargs(dict(values), list(args))
    finally:
        hook._warn_already_imported = warn
    return config


# Fixtures


def fixture_functions(item: Any, name: str) -> Iterator[tuple[Any, Sequence[str]]]:
    """The functions of a fixture as an item sees it, the one that it gets first, and what each asks for."""
    for definition in reversed(item._fixtureinfo.name2fixturedefs.get(name, ())):
        yield definition.func, definition.argnames


def fixture_name(name: str, member: object) -> str | None:
    """The fixture that a member of a plugin with this name defines; `None` if it defines none."""
    # Under the second name until pytest 8.3.
    marker = getattr(member, "_fixture_function_marker", None) or getattr(member, "_pytestfixturefunction", None)
    return None if marker is None else getattr(marker, "name", None) or name


# Running tests and their subtests


def run_phases(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Set an item up, call it, tear it down, and log each phase's report."""
    from _pytest.runner import runtestprotocol

    runtestprotocol(item, log=True, nextitem=nextitem)


def keep_around(item: pytest.Item) -> pytest.Item:
    """An item that is never run: as the next one, it keeps what is set up around another one, such as its module."""
    parent: Any = item.parent
    following: pytest.Item = pytest.Function.from_parent(parent, name="following", callobj=lambda: None)
    return following


def tear_down_for(session: pytest.Session, item: pytest.Item | None) -> None:
    """Tear down what is set up around earlier items and not around this one; `None` for all."""
    private: Any = session
    private._setupstate.teardown_exact(item)


def wide_parameters(item: Any) -> tuple[tuple[str, int], ...]:
    """Parameters of fixtures that live longer than a test, with the index of their value."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return ()
    return tuple(
        (name, callspec.indices[name])
        for name, scope in sorted(callspec._arg2scope.items())
        if scope.value != "function" and name in callspec.indices
    )


def complete_subtest(config: pytest.Config, report: Any, data: Mapping[str, Any]) -> None:
    """Make up for what pytest (9 and later) does in the process that a subtest runs in; other reports stay as they are.

    It fails a test that has failed subtests by a count of its own. And reading a report out of its `data` makes text of
    the subtest's parameters, which are text already.
    """
    try:
        from _pytest.subtests import SubtestReport, failed_subtests_key
    except ImportError:
        return
    if not isinstance(report, SubtestReport):
        return
    object.__setattr__(report.context, "kwargs", data["_subtest.context"]["kwargs"])
    if report.failed:
        # A node's key was its node id before it was an object.
        key: Any = getattr(report, "id", report.nodeid)
        config.stash[failed_subtests_key][key] += 1


# The terminal


def terminal_width(terminal: Any) -> int:
    """Columns."""
    width: int = terminal._tw.fullwidth
    return width


def terminal_encoding(terminal: Any) -> str:
    """What its lines are encoded with."""
    return getattr(terminal._tw._file, "encoding", None) or "utf-8"


def is_at_line_start(terminal: Any) -> bool:
    """Whether nothing stands on the current line yet, neither a file's name nor the letter of a test."""
    return not terminal._tw.width_of_current_line
