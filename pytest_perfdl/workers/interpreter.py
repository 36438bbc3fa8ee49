"""Another Python interpreter, with the environment that it belongs to.

`--perf-against-python` runs one side of a comparison there. Which distributions are installed is asked of the
interpreter itself: nothing is read from its folders, so virtual environments, conda and system Pythons are alike.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

import pytest_perfdl
from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.system import processes
from pytest_perfdl.system.files import expanded
from pytest_perfdl.system.git import environment_apart
from pytest_perfdl.system.import_path import WITHOUT_FOLDER

SECONDS = 120.0
"""Longest that an interpreter may take to describe its environment."""
NAME = "pytest-perfdl"

_SCRIPT = Path(__file__).with_name("environment_script.py")


class Distribution(msgspec.Struct, frozen=True):
    """An installed distribution."""

    version: str
    digest: str
    """Of the files that it consists of; empty where there is no list of them."""
    editable: str
    """Address of the source folder of an editable installation; empty for others."""
    folder: str
    """Where it is installed."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal where the same code is installed."""
        return self.version, self.digest, self.editable


class _Described(msgspec.Struct, frozen=True):
    python: str
    prefix: str
    base_prefix: str
    packages: list[str]
    path: list[str]
    distributions: dict[str, Distribution]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter and its environment."""

    executable: str
    """Path that starts it, absolute."""
    python: str
    """Version of Python."""
    prefix: str
    """`sys.prefix` there, which tells virtual environments apart."""
    base_prefix: str
    """`sys.base_prefix` there: the Python that a virtual environment was made with."""
    packages: tuple[str, ...]
    """Folders that distributions are installed into."""
    path: tuple[str, ...]
    """`sys.path` there."""
    distributions: Mapping[str, Distribution]
    """By normalized name (PEP 503)."""


def describe(executable: str) -> Interpreter:
    """Ask an interpreter about itself.

    Parameters
    ----------
    executable
        Its path, the folder of its virtual environment, or the name of a command.

    Raises
    ------
    CheckoutError
        It does not exist or does not start.
    """
    path = _found(executable)
    # Links are kept: a virtual environment's python is one, and is told by where it lies.
    command = [path, "-c", f"{WITHOUT_FOLDER}exec(sys.argv[1])", _SCRIPT.read_text()]
    try:
        done = processes.run(command, Path.cwd(), seconds=SECONDS, environment=environment_apart())
    except OSError as error:
        raise CheckoutError(f"{path} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise CheckoutError(f"{path} did not describe its environment within {SECONDS:g} s") from None
    try:
        known = msgspec.json.decode(done.output.splitlines()[-1] if done.output else b"", type=_Described)
    except msgspec.MsgspecError:
        raise CheckoutError(f"{path} is not a working Python interpreter (exit code {done.code})") from None
    return Interpreter(
        executable=path,
        python=known.python,
        prefix=known.prefix,
        base_prefix=known.base_prefix,
        packages=tuple(dict.fromkeys(known.packages)),
        path=tuple(known.path),
        distributions=known.distributions,
    )


def check_version(other: Interpreter) -> None:
    """Check that both sides speak the same protocol.

    Raises
    ------
    CheckoutError
        The environment lacks this version of pytest-perfdl; the message has the command that installs it.
    """
    there = other.distributions.get(NAME)
    own = pytest_perfdl.__version__
    if there is not None and there.version == own:
        return
    has = f"pytest-perfdl {there.version}" if there is not None else "no pytest-perfdl"
    raise CheckoutError(
        f"{other.executable} has {has}, but both sides need version {own}: run {other.executable} -m pip install "
        f"{NAME}=={own}"
    )


def differences(base: Interpreter, head: Interpreter) -> dict[str, tuple[str, str]]:
    """Distributions that differ between two environments: name -> (there, here), in the order of their names.

    A distribution that one environment lacks is "not installed". Where the versions are equal but the files are not,
    the texts hold a part of the digest of the files.
    """
    found = {}
    for name in sorted({*base.distributions, *head.distributions}):
        before, after = base.distributions.get(name), head.distributions.get(name)
        if before is None or after is None or before.identity != after.identity:
            same = before is not None and after is not None and before.version == after.version
            found[name] = (_shown(before, exact=same), _shown(after, exact=same))
    return found


def _shown(distribution: Distribution | None, *, exact: bool) -> str:
    if distribution is None:
        return "not installed"
    if not exact:
        return distribution.version
    return f"{distribution.version} ({distribution.editable or distribution.digest[:7] or 'unknown files'})"


def _found(executable: str) -> str:
    """The absolute path of an interpreter that was named.

    Raises
    ------
    CheckoutError
    """
    place = expanded(executable)
    if place.is_dir():
        place = place / "bin" / "python"
    found = shutil.which(str(place))
    if found is None:
        there = Path(place).exists()
        raise CheckoutError(f"{place} is not executable" if there else f"there is no Python interpreter {place}")
    return os.path.abspath(found)  # noqa: PTH100 - `resolve` would follow the link out of a virtual environment
