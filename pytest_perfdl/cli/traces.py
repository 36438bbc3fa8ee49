"""The traces that a command is given: files, and what is a trace in a folder; everything else in it is named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.cli.common import recordings_of, say
from pytest_perfdl.cli.step_name import with_step_name
from pytest_perfdl.model.errors import CommandError, NotATrace, TraceError
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.trace import Trace
from pytest_perfdl.trace.contents import nothing_in, refusal_of
from pytest_perfdl.trace.recordings import several

_NAMED = 8
"""Files that are named one by one."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a folder and of those in it, in the order of their paths, without hidden ones."""

    path: Path
    traces: Sequence[Path]
    others: Mapping[Path, TraceError]
    """Why each of the others is no trace."""

    @classmethod
    def of(cls, path: Path) -> Folder:
        """Look into every file; only the beginnings are read."""
        files = sorted(file for file in path.rglob("*") if file.is_file())
        files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        found = {file: refusal_of(file) for file in files}
        return cls(
            path,
            [file for file, error in found.items() if error is None],
            {file: error for file, error in found.items() if error is not None},
        )

    def listed(self, files: Iterable[Path]) -> str:
        """The files with what they are, the first of them one by one."""
        shown = [f"{file.relative_to(self.path)} ({self._what(file)})" for file in files]
        more = f", and {plural(len(shown) - _NAMED, 'more file')}" if len(shown) > _NAMED else ""
        return ", ".join(shown[:_NAMED]) + more

    def name_others(self, command: str, files: Sequence[Path], one: str = "trace") -> None:
        """Print which files were left out, in one line."""
        if files:
            said = f"is not a {one} and was" if len(files) == 1 else f"are not {one}s and were"
            line = f"{plural(len(files), 'file')} in {self.path} {said} left out: {self.listed(files)}"
            say(f"perfdl {command}: {visible(line)}", error=True)

    def _what(self, file: Path) -> str:
        error = self.others.get(file)
        if error is None:
            return "a trace"
        what = error.what if isinstance(error, NotATrace) else ""
        return what or str(error).removeprefix(f"{file} ").removeprefix("is ")


def trace_files(names: Sequence[str], command: str) -> list[str]:
    """The files, in the place of a folder the traces in it; what else is in it is printed.

    Raises
    ------
    CommandError
        When a folder has no traces.
    """
    found: list[str] = []
    for name in names:
        if not Path(name).is_dir():
            found.append(name)
            continue
        folder = Folder.of(Path(name))
        if not folder.traces:
            has = f"it has {folder.listed(folder.others)}" if folder.others else "it has no files"
            raise CommandError(f"{name} contains no traces: {has}")
        folder.name_others(command, list(folder.others))
        found += map(str, folder.traces)
    return found


def recordings_in(trace: Trace, *, memory: bool = False, step_name: re.Pattern[str] | None = None) -> tuple[Trace, ...]:
    """The trace, or that of each process where its file holds several, which is said.

    Parameters
    ----------
    memory
        Whether memory events are enough.
    step_name
        Names of the annotations that are the steps (`--step-name`).

    Raises
    ------
    CommandError, TraceError
        If nothing of it can be analyzed, no annotation is a step by this name, or its processes or the sides of a
        comparison cannot be told apart; the message is one line.
    """
    found = recordings_of(trace)
    if why := nothing_in(trace, memory=memory):
        raise CommandError(f"{trace.source} {why}")
    if len(found) > 1:
        say(visible(f"{several(trace, found)}: read as ranks"), error=True)
    return with_step_name(found, step_name)
