"""Baselines of a team: rename and verify baseline files, without measuring anything."""

from __future__ import annotations

import argparse
import hashlib
import os
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.baseline import text
from pytest_perfdl.baseline.files import RECORD_SUFFIX, TRACE_SUFFIX, Store, advised, exemplar_path
from pytest_perfdl.cli.common import say, shown
from pytest_perfdl.cli.project import add_dir, baselines, store
from pytest_perfdl.machine.rates import FILE as MACHINE_FILE
from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.model.errors import BaselineError, CommandError, RecordError
from pytest_perfdl.model.record import Record
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.untrusted_files import read_bytes
from pytest_perfdl.model.visible import visible
from pytest_perfdl.system.files import TEMPORARY

_BESIDE = (".gitattributes", ".gitignore", ".gitkeep", "README.md")
"""Files that people keep at the top of the baseline folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    rename = actions.add_parser("rename", help="move baselines to the new name of a test, a test file or a folder")
    add_dir(rename)
    rename.add_argument("old", metavar="OLD", help="former id of a test, or path of a test file or folder")
    rename.add_argument("new", metavar="NEW", help="the new one")
    verify = actions.add_parser(
        "verify", help="check every file below the baseline folder; exit code 1 if one is wrong"
    )
    add_dir(verify)


def run(arguments: argparse.Namespace) -> int:
    """Do the action; 1 for what verify found, 3 when there is nothing to do."""
    stored = store(arguments)
    return _verify(stored) if arguments.action == "verify" else _rename(stored, arguments.old, arguments.new)


def _rename(store: Store, old: str, new: str) -> int:
    """Move the baselines of a test, of a file or below a folder, with all machine IDs; 3 when there is none.

    Raises
    ------
    CommandError
        When a new name is taken; nothing was moved.
    """
    old, new = old.rstrip("/"), new.rstrip("/")
    if ("::" in old) != ("::" in new):
        raise CommandError(f"{old} and {new} are not of one kind: name two tests, two test files or two folders")
    moved = [
        (path, record, replace(record, test=new + record.test[len(old) :]))
        for path, record in baselines(store)
        if record.test == old or record.test.startswith((f"{old}::", f"{old}[", f"{old}/"))
    ]
    if not moved or old == new:
        say(f"nothing to rename: no baseline is of {visible(old)}" if not moved else "both names are the same")
        return 3
    for path, record, renamed in moved:
        right, target = (store.path(each.test, each.key.slug) for each in (record, renamed))
        if right != path:
            raise CommandError(f"{shown(path)} is not where its baseline belongs: move it to {shown(right)} first")
        if os.path.lexists(target) and not _is_same(store.load(renamed.test, renamed.key.slug), renamed):
            raise CommandError(
                f"nothing was renamed, because {shown(target)} exists: choose another name, or delete this file"
            )
    for _, record, renamed in moved:
        _move(store, record, renamed)
        say(f"renamed  {visible(record.test)} -> {visible(renamed.test)}  ({visible(record.key.slug)})")
    return 0


def _is_same(there: Record | None, renamed: Record) -> bool:
    """Whether an interrupted command has written the new file: it names only the traces that there were."""
    return there is not None and replace(there, exemplars=renamed.exemplars) == renamed


def _move(store: Store, record: Record, renamed: Record) -> None:
    """Write the new files, then delete the old ones, the record last: an interrupted command is repeated.

    An old trace that is gone then is the one that the new record has.
    """
    traces = {
        call: path
        for each in (renamed, record)
        for call, path in store.exemplars(each.test, each.key.slug)[0].items()
        if hashlib.sha256(path.read_bytes()).hexdigest() == record.exemplars.get(call)
    }
    store.save(renamed, {call: path.read_bytes() for call, path in traces.items()})
    store.remove(record.test, record.key.slug)


def _verify(store: Store) -> int:
    """Print a line for each file that is wrong; 1 if there is one, 3 if there is no baseline."""
    if not store.base.is_dir():
        raise CommandError(f"there is no baselines folder {shown(store.base)}: set it with --dir")
    files = sorted(
        Path(folder, name) for folder, names, found in os.walk(store.base) for name in (*found, *_links(folder, names))
    )
    wrong = [(path, why) for path in files if (why := _wrong(store, path, set(files)))]
    wrong += [(path, f"differs from {other.name} only in case") for path, other in _collisions(files)]
    for path, why in sorted(wrong):
        say(f"{visible(shown(path))}: {visible(why)}")
    records = {path for path in files if path.suffix == RECORD_SUFFIX and path.name != MACHINE_FILE}
    count, sound = len(records), len(records - {path for path, _ in wrong})
    if wrong:
        say(f"{sound} of {plural(count, 'baseline')} verified, {plural(len(wrong), 'problem')}")
    else:
        say(f"{plural(count, 'baseline')} verified")
    return 1 if wrong else 0 if count else 3


def _links(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_symlink()]


def _wrong(store: Store, path: Path, files: set[Path]) -> str:
    """What is wrong with a file among the baselines; empty if nothing is."""
    if path.is_symlink():
        return "is a symbolic link: replace it by a file"
    if TEMPORARY.fullmatch(path.name):
        return "was left by a writer that was killed: delete the file"
    if path.parent == store.base and path.name in _BESIDE:
        return ""
    try:
        if path.name.endswith(TRACE_SUFFIX):
            return _wrong_trace(path, files)
        if path.suffix != RECORD_SUFFIX:
            return "belongs to no baseline: move it away"
        data = read_bytes(path, text.LIMIT)
        if path.name == MACHINE_FILE and path.parent.parent == store.base:
            text.check_merged(data)
            Machine.load(path)
            return ""
        record = text.parse(data)
        right = store.path(record.test, record.key.slug)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except RecordError as error:
        return advised(error)
    except (BaselineError, ValueError) as error:
        return f"cannot be used: {error}"
    if right != path:
        return f"belongs in {shown(right)}: move it there with its traces, or delete the file"
    return ""


def _wrong_trace(path: Path, files: set[Path]) -> str:
    """Whether a trace is that of a record beside it."""
    stem = path.name.removesuffix(TRACE_SUFFIX)
    # The unnamed call's, or that of a call whose name is behind the last dot.
    for record_name in dict.fromkeys((stem, stem.rpartition(".")[0])):
        beside = path.with_name(record_name + RECORD_SUFFIX)
        if beside not in files:
            continue
        try:
            record = text.parse(read_bytes(beside, text.LIMIT))
        except RecordError:
            return ""
        for call in record.calls:
            if exemplar_path(beside, call.name) == path:
                if hashlib.sha256(read_bytes(path, text.LIMIT)).hexdigest() == record.exemplars.get(call.name):
                    return ""
                return f"is not the trace of {shown(beside)}, and is ignored: restore it from git, or delete it"
    return "belongs to no baseline: delete it"


def _collisions(files: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Files and folders that would be one where the file system folds case or composes characters."""
    seen: dict[tuple[Path, str], Path] = {}
    for path in dict.fromkeys(each for file in files for each in (*reversed(file.parents), file)):
        name = unicodedata.normalize("NFC", path.name).casefold()
        other = seen.setdefault((path.parent, name), path)
        if other != path:
            yield path, other
