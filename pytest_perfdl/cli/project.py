"""Which project a command is for: its root directory and its baselines, as pytest finds them."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_perfdl.baseline.files import Store, outline
from pytest_perfdl.baseline.text import LIMIT, parse
from pytest_perfdl.cli.common import local_path, say, shown
from pytest_perfdl.machine.rates import FILE as MACHINE_FILE
from pytest_perfdl.machine.visible_devices import wanted_locks
from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import CommandError, RecordError
from pytest_perfdl.model.record import Record
from pytest_perfdl.model.record_json import Outline
from pytest_perfdl.system.device_lock import DeviceLock, folder_of, waiting_for
from pytest_perfdl.system.remote import local

_DEFAULT = "baselines"


@dataclass(frozen=True, slots=True)
class Project:
    """What the ini file says, and the options that it and `PYTEST_ADDOPTS` add to every call of pytest."""

    root: Path
    """pytest's root directory."""
    ini: Path | None
    folder: str
    """Folder of the baselines, relative to the root directory or absolute."""
    device_lock: str
    """Mode of `--perf-device-lock`."""
    options: tuple[str, ...] = ()


def add_dir(parser: argparse.ArgumentParser) -> None:
    """Declare `--dir`."""
    parser.add_argument(
        "--dir",
        type=local_path,
        metavar="FOLDER",
        help="folder of the baselines (default: perf_dir in pytest's ini file)",
    )


def store(arguments: argparse.Namespace) -> Store:
    """The baselines that a command is about.

    Raises
    ------
    CommandError
        When the project's setting is no folder.
    """
    if arguments.dir is not None:
        return Store(Path.cwd(), str(arguments.dir))
    project = find_project()
    try:
        return Store(project.root, local(project.folder))
    except ValueError as error:
        raise CommandError(f"perf_dir: {error}") from None


def baselines(store: Store) -> Iterator[tuple[Path, Record]]:
    """Every baseline of a project, in the order of their paths.

    Raises
    ------
    CommandError
        When there is no such folder, or a file in it cannot be read.
    """
    for path, data in _files(store):
        yield path, _read(path, data)


def outlines(store: Store) -> Iterator[tuple[Path, Outline]]:
    """As `baselines`, without the parts of a record that a list does not show: several times faster."""
    for path, data in _files(store):
        try:
            yield path, outline(data)
        except RecordError:
            # The same words as everywhere.
            _read(path, data)
            raise


def _read(path: Path, data: bytes) -> Record:
    try:
        return parse(data)
    except RecordError as error:
        raise CommandError(f"{shown(path)} {error}") from error


def _files(store: Store) -> Iterator[tuple[Path, bytes]]:
    folder = store.base
    if not folder.is_dir():
        raise CommandError(f"there is no baselines folder {shown(folder)}: set the folder with --dir")
    for path in sorted(folder.rglob("*.json")):
        if path.name == MACHINE_FILE and path.parent.parent == folder:
            continue
        if not path.resolve().is_relative_to(folder.resolve()):
            raise CommandError(f"{shown(path)} is not read: it is a symbolic link out of {shown(folder)}")
        try:
            yield path, untrusted_files.read_bytes(path, LIMIT)
        except OSError as error:
            raise CommandError(f"{shown(path)} cannot be read: {error.strerror}") from error


def find_project() -> Project:
    """The project that the working directory is in.

    Raises
    ------
    CommandError
        When its ini file cannot be read.
    """
    # Imported here: most commands need no pytest.
    import pytest

    from pytest_perfdl.system.pytest_internals import find_ini

    try:
        root, ini, values = find_ini(Path.cwd())
    except pytest.UsageError as error:
        raise CommandError(f"pytest's ini file is invalid: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"pytest's ini file cannot be read: {error}") from error
    options = (*_words(values.get("addopts", "")), *_words(os.environ.get("PYTEST_ADDOPTS", "")))

    def setting(name: str, default: str) -> str:
        named = next((value for key in (f"perfdl_{name}", f"perf_{name}") if (value := values.get(key, ""))), "")
        return _find_in_options(options, name.replace("_", "-")) or str(named).strip() or default

    return Project(root, ini, setting("dir", _DEFAULT), setting("device_lock", "auto"), options)


@contextlib.contextmanager
def on_device() -> Iterator[None]:
    """Wait until no run measures on the device, and keep runs waiting until what is timed here has ended.

    Raises
    ------
    CommandError
        When the project's setting is invalid.
    """
    mode, waited = find_project().device_lock, False
    try:
        folder = folder_of(mode)
    except ValueError as error:
        raise CommandError(f"perf_device_lock = {mode!r}: {error}") from None
    if folder is None:
        yield
        return

    def wait(holder: int | None) -> None:
        nonlocal waited
        if not waited:
            say(waiting_for(holder), error=True)
        waited = True

    lock = DeviceLock(folder, wanted_locks(os.environ))
    try:
        lock.acquire(wait)
        if lock.problem:
            say(f"other runs on this machine may measure at the same time: {lock.problem}", error=True)
        yield
    finally:
        lock.release()


def _words(text: Any) -> list[str]:
    try:
        return [str(word) for word in text] if isinstance(text, list) else shlex.split(str(text))
    except ValueError as error:
        raise CommandError(
            f"addopts in the ini file or PYTEST_ADDOPTS is {str(text)!r}, which cannot be split into words: {error}"
        ) from error


def _find_in_options(options: tuple[str, ...], name: str) -> str:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(f"--perfdl-{name}", f"--perf-{name}", dest="value", default="")
    try:
        return str(parser.parse_known_args(options)[0].value)
    except argparse.ArgumentError:
        return ""
