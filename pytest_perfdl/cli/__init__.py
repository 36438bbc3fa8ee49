"""The `perfdl` command: what pytest does with baselines, without pytest.

One file a subcommand, each with the same two functions: `add_arguments(parser)` and `run(arguments) -> exit
code`. Exit codes: 0 done, 1 regressed, 2 wrong usage or a file that cannot be used, 3 nothing to do it to,
130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from pytest_perfdl import __version__
from pytest_perfdl.cli.common import Parser, say
from pytest_perfdl.model.errors import PerfdlError
from pytest_perfdl.model.visible import visible


class _Command(Protocol):
    """What a subcommand's module offers."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its arguments."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the exit code."""
        ...


_MODULES = {
    "accept": "accept",
    "list": "listing",
    "show": "show",
    "prune": "prune",
    "check": "check",
    "qualify": "qualify",
    "trace": "trace",
    "diff": "diff",
    "whatif": "whatif",
    "constants": "constants",
    "report": "report",
    "export": "export",
    "view": "view",
    "scaling": "scaling",
}
"""Module of each subcommand in this package."""
_BEYOND = {
    RecursionError: "what it was given is nested too deeply",
    MemoryError: "there is not enough memory for what it was given",
    OverflowError: "what it was given has numbers of which no figure can be made",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (by default the process's) and return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = Parser(prog="perfdl", description="Performance regression tests for deep learning, without pytest.")
    parser.add_argument("--version", action="version", version=f"perfdl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # Each imports what it needs, so only the one that is meant is loaded, and all of them only to be listed.
    meant = given[0] if given and given[0] in _MODULES else None
    modules = {name: _load(name) for name in _MODULES if meant in (None, name)}
    for name, module in modules.items():
        summary = (module.__doc__ or "").splitlines()[0]
        subparser = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(subparser)
    parsed, unknown = parser.parse_known_args(given)
    if unknown:
        commands.choices[parsed.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return modules[parsed.command].run(parsed)
    except PerfdlError as error:
        say(f"perfdl {parsed.command}: {visible(str(error))}", error=True)
        return 2
    except (RecursionError, MemoryError, OverflowError) as error:
        # Of a file that nests as no file of ours does, is as large, or tells of millennia: every reader may meet one.
        why = next(why for kind, why in _BEYOND.items() if isinstance(error, kind))
        say(f"perfdl {parsed.command}: {why}: a file may not be what it seems", error=True)
        return 2
    except BrokenPipeError:
        # The reader, `head` say, has seen enough.
        sys.stderr.close()
        return 0


def _load(name: str) -> _Command:
    module: Any = importlib.import_module(f"pytest_perfdl.cli.{_MODULES[name]}")
    command: _Command = module
    return command
