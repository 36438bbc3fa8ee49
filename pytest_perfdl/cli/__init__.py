"""The `perfdl` command: baselines, traces and the machine, without running pytest.

A subcommand is a module with two functions: `add_arguments(parser)` and `run(arguments) -> exit code`. Exit codes: 0
done, 1 regressed, 2 wrong usage or a file that cannot be used, 3 nothing to do it to, 130 interrupted. `__main__` is
`python -m pytest_perfdl.cli`.

- Tests and baselines: `listing` (`perfdl list`), `show`, `accept`, `refresh`, `prune`, `baseline`, `report`, `merge`,
  `history`, `bisect`, `export`, `ci`.
- Traces: `trace`, `diff`, `whatif`, `view`. Machine: `check`, `qualify`, `constants`. Sizes: `scaling`.
- Shared by subcommands: `common` (printing, errors, reading baselines and run files), `project` (root directory and
  folder of baselines), `traces` (trace files, `--step-name` and `--peaks`), `trace_processes` (many
  traces read at once). `perfdl diff` also has `diff_inputs` (what it can compare) and `memory` (`--memory`).
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

from pytest_perfdl.model.errors import INTERRUPTED

_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Tests and baselines": {
        "list": ("listing", "perfdl list -k train"),
        "show": ("show", "perfdl show test_train_step"),
        "accept": ("accept", "perfdl accept perf-report/run.json"),
        "refresh": ("refresh", "perfdl refresh perf-report/run.json"),
        "prune": ("prune", "perfdl prune --apply"),
        "baseline": ("baseline", "perfdl baseline verify"),
        "report": ("report", "perfdl report perf-report/run.json"),
        "merge": ("merge", "perfdl merge shards/1 shards/2"),
        "history": ("history", "perfdl history test_train_step"),
        "bisect": ("bisect", "perfdl bisect v1.2 HEAD tests/perf/test_train.py::test_train_step"),
        "export": ("export", "perfdl export perf-report/run.json -o perf.csv"),
        "ci": ("ci", "perfdl ci base"),
    },
    "Traces": {
        "trace": ("trace", "perfdl trace trace.json.gz --advise"),
        "diff": ("diff", "perfdl diff before.json.gz after.json.gz"),
        "whatif": ("whatif", "perfdl whatif trace.json.gz --apply cuda_graph"),
        "view": ("view", "perfdl view trace.json.gz"),
    },
    "Machine": {
        "check": ("check", "perfdl check"),
        "qualify": ("qualify", "perfdl qualify -n 20 tests/perf"),
        "constants": ("constants", "perfdl constants"),
    },
    "Scaling": {
        "scaling": ("scaling", "perfdl scaling fit points.csv --save model.json"),
    },
}
"""Subcommands in the order of `perfdl --help`: the module in this package, and an example."""
_MODULES = {name: module for group in _GROUPS.values() for name, (module, _) in group.items()}
"""Module of each subcommand in this package."""
EXAMPLES = {name: example for group in _GROUPS.values() for name, (_, example) in group.items()}
_BEYOND = {
    RecursionError: "the input is nested too deeply",
    MemoryError: "not enough memory for the input",
    OverflowError: "the input contains numbers that are too large",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (by default the process's) and return the exit code."""
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        # At any moment: while modules are imported, too, which is why this module imports next to nothing itself.
        with contextlib.suppress(KeyboardInterrupt, OSError, AttributeError):
            sys.stderr.write("perfdl: interrupted\n")
        return INTERRUPTED
    finally:
        if arguments is None:
            # Nothing is left to clean up: from here on Ctrl-C ends the process without a word.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(given: list[str]) -> int:
    import argparse

    from pytest_perfdl import __version__
    from pytest_perfdl.cli.common import Parser, refuse_to_overwrite, say
    from pytest_perfdl.model.errors import PerfdlError
    from pytest_perfdl.model.visible import visible

    # Each imports what it needs, so only the one that is meant is loaded, and none to list them.
    meant = next((each for each in given if not each.startswith("-")), None)
    module = _load(meant) if meant in _MODULES else None
    parser = Parser(
        prog="perfdl",
        usage="perfdl [-h] [--version] COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Tools for baselines, reports and traces of pytest-perfdl, the pytest plugin.",
        epilog="" if module else _list_commands(),
    )
    parser.add_argument("--version", action="version", version=f"perfdl {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog="perfdl", help=argparse.SUPPRESS
    )
    if module is None or meant is None:
        # For the message that lists the choices.
        for name in _MODULES:
            commands.add_parser(name)
    else:
        description = (module.__doc__ or "").partition("\n")[0]
        subparser = commands.add_parser(meant, description=description, epilog=f"example: {EXAMPLES[meant]}")
        module.add_arguments(subparser)
    parsed, unknown = parser.parse_known_args(given)
    # Without a command that exists, argparse has ended the program.
    assert module is not None
    if unknown:
        commands.choices[parsed.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        refuse_to_overwrite(vars(parsed))
        code: int = module.run(parsed)
        return code
    except PerfdlError as error:
        say(f"perfdl {parsed.command}: {visible(str(error))}", error=True)
        return 2
    except (RecursionError, MemoryError, OverflowError) as error:
        # Of a file that nests as no file of ours does, is as large, or tells of millennia: every reader may meet one.
        why = next(why for kind, why in _BEYOND.items() if isinstance(error, kind))
        say(
            f"perfdl {parsed.command}: {why}: check that the input file is complete and has the right format",
            error=True,
        )
        return 2
    except BrokenPipeError:
        # The reader, `head` say, has seen enough.
        sys.stderr.close()
        return 0


def _list_commands() -> str:
    """The subcommands in their groups, with an example of each.

    The first line of a module says what it does; it is read as text, since importing all of them takes a second.
    """
    import pkgutil
    import textwrap

    lines: list[str] = []
    for title, group in _GROUPS.items():
        lines += ["", f"{title}:"] if lines else [f"{title}:"]
        for name, (module, example) in group.items():
            source = (pkgutil.get_data(__name__, f"{module}.py") or b"").decode()
            summary = source.partition("\n")[0].strip('"')
            lines += textwrap.wrap(summary, 78, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13)
            lines.append(f"{'':13}$ {example}")
    return "\n".join([*lines, "", "`perfdl COMMAND --help` lists the options of a command."])


def _load(name: str) -> Any:
    import importlib

    return importlib.import_module(f"pytest_perfdl.cli.{_MODULES[name]}")
