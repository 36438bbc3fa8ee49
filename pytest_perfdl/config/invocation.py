"""How pytest was called, and the commands in reports that call it again for some of the tests.

A command repeats the run: it keeps every option that affects measurement or verdicts, in the spelling that is valid in
this project, and names tests relative to the directory in which pytest was called.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_perfdl.config.options import FLAGS
from pytest_perfdl.config.short_names import SHARED, destinations, long_name, read_ini
from pytest_perfdl.model.visible import is_secret_name, visible, without_secrets
from pytest_perfdl.system.pytest_internals import option_actions, plain_parser

if TYPE_CHECKING:
    from pytest_perfdl.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of pytest, as far as a repeated call needs it."""

    program: Literal["pytest", "python -m pytest"] = "pytest"
    options: tuple[tuple[str, ...], ...] = ()
    """Options that affect measurement or verdicts, with their values, as given."""
    root: str = ""
    """The root directory relative to the working directory; empty if the working directory is below it."""
    folder: str = ""
    """The working directory relative to the root directory, if it is below it."""
    perf: Literal["--perf", "--perfdl"] = "--perf"
    """The spelling of this option in the project."""
    update: Literal["--perf-update", "--perfdl-update"] = "--perf-update"
    """The spelling of this option in the project."""
    is_open: bool = False
    """Whether an option has an optional value, and would consume a test id after it."""
    required: bool = False
    """Whether the ini file sets `perf_require`, which a command for a few tests would not meet."""

    def measuring(self, tests: Sequence[str]) -> str:
        """The command that measures and compares tests (node ids or files) in the same way, for a POSIX shell."""
        against = any(_flag(option) == "--perfdl-against" for option in self.options)
        words: list[str] = [] if against else [self.perf]
        if self.required:
            words.append(f"{self.perf}-require=0")
        return self._command(words, self.options, tests)

    def updating(self, tests: Sequence[str], mode: str = "") -> str:
        """The command that records baselines of tests (node ids or files), for a POSIX shell."""
        options = [option for option in self.options if _flag(option) not in _NOT_WHEN_UPDATING]
        return self._command([self.update + (f"={mode}" if mode else "")], options, tests)

    def between_environments(self, old: str, new: str, test: str) -> str:
        """The command that finds the package that made a test (node id) slower between two interpreters."""
        options = [word for option in self.options if not is_of_bisect(option[0]) for word in option]
        words = ["perfdl", "bisect", "--environments", old, new, self._path(test)]
        return visible(shlex.join([*words, *(["--", *options] if options else [])]))

    def harmless(self) -> Invocation:
        """The same call with those options alone that say how to measure, for commands that others may copy.

        What comes from the file of an unknown author could otherwise run a program (`perf_against_setup`,
        `--perf-launch`, `-p`), or write a file.
        """
        options = tuple(
            option
            for option in self.options
            if _flag(option) in _HARMLESS and all(map(_VALUE.fullmatch, _values(option)))
        )
        return Invocation(options=options, perf=self.perf, update=self.update, required=self.required)

    def _command(self, words: list[str], options: Sequence[tuple[str, ...]], tests: Sequence[str]) -> str:
        given = [word for option in options for word in option]
        end = ["--"] if self.is_open else []
        return visible(" ".join([self.program, *map(shlex.quote, [*words, *given, *end, *map(self._path, tests)])]))

    def _path(self, test: str) -> str:
        file, colons, name = test.partition("::")
        if name == SHARED:
            # Its tests are those that pytest can collect.
            colons = name = ""
        if self.root:
            file = posixpath.normpath(posixpath.join(self.root, file))
        elif self.folder:
            file = posixpath.relpath(f"/{file}", f"/{self.folder}")
        # Not an option, nor a file with arguments.
        return ("./" if file.startswith(("-", "@")) else "") + file + colons + name


_NOT_WHEN_UPDATING = frozenset(
    {"--perfdl-against", "--perfdl-against-python", "--perfdl-case", "--perfdl-inject", "--perfdl-require"}
)
_OF_BISECT = frozenset(
    long_name(f"--{name}")
    for name in (
        *("no-perf", "perf-update", "perf-inject", "perf-isolate", "perf-against", "perf-against-python"),
        *("perf-skip-same", "perf-json", "perf-report", "perf-fail-on", "perf-traces", "perf-dir", "perf-require"),
        *("perf-github", "perf-calibrate", "perf-shard", "perf-note", "perf-json-benchmark"),
    )
)
_HARMLESS = frozenset(
    long_name(f"--{name}")
    for name in (
        *("perf-against", "perf-warmup", "perf-steps", "perf-repeats", "perf-threads", "perf-limit", "perf-budget"),
        *("perf-resolution", "perf-memory"),
    )
)
_VALUE = re.compile(r"[A-Za-z0-9][\w.,:%/+-]*")
_OURS_TO_DROP = frozenset(
    long_name(f"--{name}")
    for name in (
        *("perf", "no-perf", "perf-update", "perf-report", "perf-json", "perf-github", "perf-require"),
        *("perf-shard", "perf-note", "perf-json-benchmark"),
    )
)
_PYTESTS_TO_KEEP = frozenset(
    {"override_ini", "inifilename", "plugins", "rootdir", "confcutdir", "noconftest", "importmode", "pythonwarnings"}
)
"""pytest's options to keep, by attribute; the others select tests or affect output only."""


def _is_secret(word: str) -> bool:
    """Whether a word has a secret in it, or is the value of an ini key with such a name."""
    name, equals, _ = word.partition("=")
    if equals and is_secret_name(name.removeprefix("-o").removeprefix("--override-ini").replace("-", "_")):
        return True
    return without_secrets(word) != word


def is_of_bisect(word: str) -> bool:
    """Whether `perfdl bisect` gives an option to every run, or the option would make it another kind of run.

    >>> is_of_bisect("--perf-fail-on=all"), is_of_bisect("--perfdl-update"), is_of_bisect("--perf-steps=9")
    (True, True, False)
    """
    return _flag((word,)) in _OF_BISECT


def invocation(config: pytest.Config, settings: Settings) -> Invocation:
    """How pytest was called.

    All options of other plugins and of the project are kept, except those that look like secrets.
    """
    where = Path(config.invocation_params.dir)
    below = where.is_relative_to(config.rootpath)
    relative = os.path.relpath(where, config.rootpath) if below else os.path.relpath(config.rootpath, where)
    path = "" if relative == "." else Path(relative).as_posix()
    options, is_open = _keep_options(config)
    return Invocation(
        program="python -m pytest" if Path(sys.argv[0]).name == "__main__.py" else "pytest",
        options=options,
        root="" if below else path,
        folder=path if below else "",
        perf="--perfdl" if "--perf" in settings.clashes else "--perf",
        update="--perfdl-update" if "--perf-update" in settings.clashes else "--perf-update",
        is_open=is_open,
        required=str(read_ini(config, "perf_require") or "0").strip() != "0",
    )


def _keep_options(config: pytest.Config) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Options on the command line that affect the measurement, with values; whether one may consume another word."""
    found: list[tuple[str, ...]] = []
    is_open = False
    known = option_actions(config)
    pytests = destinations(plain_parser())
    words = [os.fspath(word) for word in config.invocation_params.args]
    place = 0
    while place < len(words) and words[place] != "--":
        word = words[place]
        place += 1
        action = known.get(_long(word)) or known.get(_flag((word,))) or known.get(word[:2])
        if not word.startswith("-") or action is None:
            continue
        option = [word]
        joined = "=" in word if word.startswith("--") else len(word) > 2
        many = action.nargs in ("?", "*", "+")
        while (action.nargs is None or many) and not joined and place < len(words):
            if many and words[place].startswith("-"):
                break
            option.append(words[place])
            place += 1
            if action.nargs in (None, "?"):
                break
        ours = action.dest.startswith("perfdl") or action.dest == "no_perfdl"
        if ours:
            keep = _flag((word,)) not in _OURS_TO_DROP
        elif action.dest in pytests:
            keep = action.dest in _PYTESTS_TO_KEEP
        else:
            keep = not is_secret_name(word.partition("=")[0].lstrip("-").replace("-", "_"))
        keep = keep and not any(map(_is_secret, option))
        if keep:
            found.append(tuple(option))
            is_open |= action.nargs in ("*", "+") or (action.nargs == "?" and len(option) == 1 and not joined)
    return tuple(found), is_open


def _flag(option: Sequence[str]) -> str:
    """The option string without its value; options of this plugin in the long spelling."""
    return _long(option[0].partition("=")[0])


def _values(option: Sequence[str]) -> list[str]:
    """The values of an option, joined to it or in words of their own."""
    _, equals, joined = option[0].partition("=")
    return [*([joined] if equals else []), *option[1:]]


def _long(word: str) -> str:
    return long_name(word) if word.partition("=")[0] in FLAGS else word
