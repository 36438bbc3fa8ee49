"""Virtual environments with some distributions of one environment and the others of another.

Both environments exist, so nothing is downloaded: a distribution consists of the files that its RECORD lists (PyPA,
"Recording installed projects"), and these are copied into the new environment, without taking space where the file
system can share what is the same (Btrfs, XFS). They are never links: what runs in the mixture may write into its files.
Editable installations are copied likewise: their RECORD lists the file that points to their source.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.system import processes
from pytest_perfdl.system.git import environment_apart
from pytest_perfdl.system.import_path import module_command
from pytest_perfdl.workers.interpreter import Distribution, Interpreter, differences

PYTHON = "Python"
"""Stands for the interpreter itself among the distributions that differ."""
_SECONDS = 300.0
"""Longest that making an environment, checking it or installing a distribution may take each."""
_SHARED = "perfdl-shared.pth"

NEW, OLD = "new environment", "old environment"
"""Names of the two in a `Request`; a mixture's name is the distributions that it has of the new one: "numpy,torch"."""


@dataclass(frozen=True, slots=True)
class Environments:
    """The two environments that mixtures are made of."""

    old: Interpreter
    new: Interpreter

    def differing(self) -> dict[str, tuple[str, str]]:
        """What differs: distributions, and `PYTHON` where it has another patch version: name -> (old, new).

        Raises
        ------
        CheckoutError
            They have different minor versions of Python, for which no distribution is built twice.
        """
        if _minor(self.old) != _minor(self.new):
            raise CheckoutError(
                f"{self.old.executable} is Python {self.old.python} and {self.new.executable} is Python "
                f"{self.new.python}: distributions cannot be mixed across minor versions of Python. Compare both as "
                f"they are, with --perf-against-python {self.old.executable}"
            )
        versions = {} if self.old.python == self.new.python else {PYTHON: (self.old.python, self.new.python)}
        return versions | differences(self.old, self.new)

    def mix(self, chosen: frozenset[str], folder: Path) -> Path:
        """Make an environment with these of the new one, and all else of the old one.

        Parameters
        ----------
        chosen
            Of the names in `differing`.
        folder
            Where to make it; it must not exist.

        Returns
        -------
        Path
            The interpreter.

        Raises
        ------
        CheckoutError
            A distribution is missing files, or has no list of them and cannot be installed.
        """
        python = self.new if PYTHON in chosen else self.old
        # What both see of the Python below them, or of other folders, need not be copied.
        options = ["--without-pip", *(["--system-site-packages"] if _sees_system(python) else [])]
        _run(module_command(python.executable, "venv", *options, str(folder)), "making a virtual environment")
        interpreter = folder / "bin" / "python"
        # `lib64` is a link to `lib`, so one folder takes all.
        (packages,) = folder.glob("lib/python*/site-packages")
        # Where two distributions have the same file, that of the new environment is the one that stays.
        names = {*self.old.distributions, *self.new.distributions}
        for name in sorted(names, key=lambda name: (name not in chosen, name)):
            source = self.new if name in chosen else self.old
            if (distribution := source.distributions.get(name)) is not None:
                self._add(name, distribution, source, interpreter, folder, packages)
        entries = [entry for entry in self.old.path if entry in self.new.path and self._is_shared(Path(entry))]
        (packages / _SHARED).write_text("".join(f"{entry}\n" for entry in entries))
        return interpreter

    def _add(
        self,
        name: str,
        distribution: Distribution,
        source: Interpreter,
        interpreter: Path,
        folder: Path,
        packages: Path,
    ) -> None:
        place = Path(distribution.folder)
        if self._is_shared(place):
            return
        record = _record(place, name)
        if record is not None:
            _copy(record, place, Path(source.prefix), packages, folder)
            return
        if source.prefix != source.base_prefix and place.is_relative_to(source.base_prefix):
            return
        wanted = f"{name}=={distribution.version}"
        what = f"{name} in {source.prefix} has no RECORD, and installing {wanted}"
        arguments = ["--python", str(interpreter), "install", "--no-deps", wanted]
        _run(module_command(source.executable, "pip", *arguments), what)

    def _is_shared(self, place: Path) -> bool:
        """Whether a folder is in neither environment, nor in the Python below."""
        inside = {each for side in (self.old, self.new) for each in (side.prefix, side.base_prefix)}
        return not any(place.is_relative_to(each) for each in inside)


def complaints(interpreter: str) -> frozenset[str]:
    """What `pip check` finds wrong with an environment, one line each; nothing where there is no pip."""
    command = module_command(interpreter, "pip", "--disable-pip-version-check", "check")
    try:
        done = processes.run(command, Path.cwd(), seconds=_SECONDS, environment=environment_apart())
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    lines = (line.strip() for line in done.output.decode(errors="replace").splitlines())
    return frozenset(line for line in lines if line) if done.code == 1 else frozenset()


def owners(interpreter: Interpreter, files: Mapping[str, float]) -> list[str]:
    """Distributions that some files are of, those with the largest weights first.

    Parameters
    ----------
    files
        Weight by path, absolute or the end of one, as source lines of a trace have them.
    """
    weights: dict[str, float] = {}
    for name, distribution in interpreter.distributions.items():
        place = Path(distribution.folder)
        record = _record(place, name)
        if record is None:
            continue
        listed = [(place / line[0]).as_posix() for line in _lines(record)]
        for file, weight in files.items():
            end = file if file.startswith("/") else f"/{file}"
            if any(path == file or path.endswith(end) for path in listed):
                weights[name] = weights.get(name, 0.0) + weight
    return sorted(weights, key=lambda name: -weights[name])


def _copy(record: Path, place: Path, prefix: Path, packages: Path, folder: Path) -> None:
    """Copy the files of a distribution to where they belong in the new environment; nothing there is written over."""
    for relative, *_ in _lines(record):
        source = Path(os.path.normpath(place / relative))
        if source.is_relative_to(place):
            target = packages / source.relative_to(place)
        elif source.is_relative_to(prefix):
            target = folder / source.relative_to(prefix)
        else:
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as given, target.open("xb") as made:
                if source.parent == prefix / "bin":
                    # A script names its interpreter.
                    first = given.readline()
                    renamed = first.replace(os.fsencode(prefix), os.fsencode(folder))
                    made.write(renamed if first.startswith(b"#!") else first)
                    shutil.copyfileobj(given, made)
                else:
                    _fill(made, given)
            shutil.copystat(source, target)
        except (FileNotFoundError, FileExistsError):
            # Compiled files may have been removed; a module that is missing is missing in its own environment, too.
            continue
        except OSError as error:
            raise CheckoutError(f"{source} cannot be copied to {target}: {error.strerror or error}") from None


def _fill(made: IO[bytes], given: IO[bytes]) -> None:
    """Copy a file; the kernel shares what is the same, where the file system can."""
    try:
        while os.copy_file_range(given.fileno(), made.fileno(), 2**30):
            pass
    except (AttributeError, OSError):
        shutil.copyfileobj(given, made)


def _record(place: Path, name: str) -> Path | None:
    """The list of a distribution's files; `None` if it has none."""
    for info in place.glob("*.dist-info"):
        if _normalized(info.stem.rpartition("-")[0]) == name and (info / "RECORD").is_file():
            return info / "RECORD"
    return None


def _lines(record: Path) -> list[list[str]]:
    with record.open(newline="", encoding="utf-8") as file:
        return [line for line in csv.reader(file) if line]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _minor(interpreter: Interpreter) -> str:
    return ".".join(interpreter.python.split(".")[:2])


def _sees_system(interpreter: Interpreter) -> bool:
    """Whether a virtual environment also has what is installed in the Python that it was made with."""
    if interpreter.prefix == interpreter.base_prefix:
        return False
    below = Path(interpreter.base_prefix)
    names = ("site-packages", "dist-packages")
    return any(Path(entry).is_relative_to(below) and Path(entry).name in names for entry in interpreter.path)


def _run(command: list[str], what: str) -> None:
    try:
        done = processes.run(command, Path.cwd(), seconds=_SECONDS, environment=environment_apart())
    except subprocess.TimeoutExpired:
        raise CheckoutError(f"{what} did not finish within {_SECONDS:g} s") from None
    except OSError as error:
        raise CheckoutError(f"{what} failed: {error.strerror or error}") from None
    if done.code:
        lines = (done.errors + done.output).decode(errors="replace").splitlines()
        said = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {done.code}")
        raise CheckoutError(f"{what} failed: {said}")
