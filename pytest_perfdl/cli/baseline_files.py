"""What `perfdl baseline` does to the files of a project's baselines: rename, migrate, verify and compact."""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_perfdl.baseline import text
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.baseline.layout import RECORD_SUFFIX, TRACE_SUFFIX, exemplar_path
from pytest_perfdl.baseline.remote import RemoteStore
from pytest_perfdl.cli.common import baselines, say
from pytest_perfdl.machine.constants import FILE as MACHINE_FILE
from pytest_perfdl.machine.constants import Machine
from pytest_perfdl.model.errors import BaselineError, CommandError, RecordError
from pytest_perfdl.model.record import Record
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.untrusted_files import read_bytes
from pytest_perfdl.model.visible import visible
from pytest_perfdl.system.files import TEMPORARY
from pytest_perfdl.system.folders import delete_file

_BESIDE = (".gitattributes", ".gitignore", ".gitkeep", "README.md")
"""Files that people keep at the top of the baseline folder."""
_NAMED = 3
"""Changed places of a record that are named."""


def rename(store: Store, old: str, new: str) -> int:
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
        target = store.path(renamed.test, renamed.key.slug)
        if store.path(record.test, record.key.slug) != path:
            raise CommandError(
                f"{store.shown(path, Path.cwd())} is not where its baseline belongs: run perfdl baseline migrate first"
            )
        if os.path.lexists(target) and store.load(renamed.test, renamed.key.slug) != renamed:
            raise CommandError(
                f"nothing was renamed, because {store.shown(target, Path.cwd())} exists: choose another name, or "
                "delete this file"
            )
    for _, record, renamed in moved:
        _move(store, record, renamed)
        say(f"renamed  {visible(record.test)} -> {visible(renamed.test)}  ({visible(record.key.slug)})")
    return 0


def _move(store: Store, record: Record, renamed: Record) -> None:
    """The new one first: a command that was interrupted is repeated."""
    traces, _ = store.exemplars(record.test, record.key.slug)
    store.save(renamed, {call: path.read_bytes() for call, path in traces.items()})
    store.remove(record.test, record.key.slug)


def migrate(store: Store, *, check: bool) -> int:
    """Rewrite records as this version writes them, in the places where this version looks for them.

    With `check`, 1 when one would change.
    """
    count = total = 0
    for path, record in list(baselines(store)):
        total += 1
        where, target = store.shown(path, Path.cwd()), store.path(record.test, record.key.slug)
        before, after = read_bytes(path, text.LIMIT), text.dump(record)
        said = [] if before == after else _changes(json.loads(before), json.loads(after))
        if path != target:
            if os.path.lexists(target):
                raise CommandError(
                    f"{where} belongs in {store.shown(target, Path.cwd())}, which exists: delete one of both files"
                )
            said.append(f"moved to {store.shown(target, Path.cwd())}")
        if not said:
            continue
        count += 1
        say(f"{'outdated' if check else 'migrated'}  {where}  ({visible('; '.join(said))})")
        if not check:
            _rewrite(store, path, target, after, record)
    say(f"{plural(count, 'baseline')} of {total} {'would change' if check else 'changed'}")
    return int(check and count > 0)


def _rewrite(store: Store, path: Path, target: Path, data: bytes, record: Record) -> None:
    pairs = [(exemplar_path(path, call.name), exemplar_path(target, call.name)) for call in record.calls]
    for old, new in pairs:
        if path != target and old.is_file():
            store.write(new, read_bytes(old, text.LIMIT))
    store.write(target, data)
    if path != target:
        for file in (*(old for old, _ in pairs), path):
            delete_file(file, store.base)


def _changes(before: Any, after: Any) -> list[str]:
    """Places where two JSON values differ, at most a few."""
    places = list(_differing(before, after, ""))
    if not places:
        return ["layout of the text"]
    return places[:_NAMED] + ([f"{len(places) - _NAMED} more"] if len(places) > _NAMED else [])


def _differing(before: Any, after: Any, place: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            inner = f"{place}.{name}" if place else name
            if name not in after or name not in before:
                yield f"{inner} {'added' if name in after else 'removed'}"
            else:
                yield from _differing(before[name], after[name], inner)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differing(old, new, f"{place}[{number}]")
    elif before != after:
        yield place


def verify(store: Store) -> int:
    """Print a line for each file that is wrong; 1 if there is one, 3 if there is no baseline."""
    if not store.base.is_dir():
        raise CommandError(f"there is no baselines folder {store.shown(store.base, Path.cwd())}: set it with --dir")
    files = sorted(
        Path(folder, name) for folder, names, found in os.walk(store.base) for name in (*found, *_links(folder, names))
    )
    wrong = [(path, why) for path in files if (why := _wrong(store, path, set(files)))]
    wrong += [(path, f"differs from {other.name} only in case") for path, other in _collisions(files)]
    for path, why in sorted(wrong):
        say(f"{visible(store.shown(path, Path.cwd()))}: {visible(why)}")
    for line in (said := (*store.notes, *store.leftovers())):
        say(visible(line))
    count = sum(1 for path in files if path.suffix == RECORD_SUFFIX and path.name != MACHINE_FILE)
    bad = len(wrong) + len(said)
    say(
        f"{plural(count, 'baseline')} verified, {plural(bad, 'problem')}"
        if bad
        else f"{plural(count, 'baseline')} verified"
    )
    return 1 if bad else 0 if count else 3


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
            return _wrong_trace(store, path, files)
        if path.suffix != RECORD_SUFFIX:
            return "belongs to no baseline: move it away"
        if path.name == MACHINE_FILE and path.parent.parent == store.base:
            Machine.load(path)
            return ""
        record = text.parse(read_bytes(path, text.LIMIT))
        right = store.path(record.test, record.key.slug)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except RecordError as error:
        return f"{error}: restore the file from git, or record the baseline again with pytest --perf-update=all"
    except (BaselineError, ValueError) as error:
        return f"cannot be used: {error}"
    if right != path:
        return f"belongs in {store.shown(right, Path.cwd())}: run perfdl baseline migrate, or delete the file"
    return ""


def _wrong_trace(store: Store, path: Path, files: set[Path]) -> str:
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
                digest = record.exemplars.get(call.name)
                if digest is None or hashlib.sha256(read_bytes(path, text.LIMIT)).hexdigest() == digest:
                    return ""
                return (
                    f"is not the trace of {store.shown(beside, Path.cwd())}, and is ignored: restore it from git, or "
                    "delete it"
                )
    return "belongs to no baseline: delete it"


def _collisions(files: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Files and folders that would be one where the file system folds case or composes characters."""
    seen: dict[tuple[Path, str], Path] = {}
    for path in dict.fromkeys(each for file in files for each in (*reversed(file.parents), file)):
        name = unicodedata.normalize("NFC", path.name).casefold()
        other = seen.setdefault((path.parent, name), path)
        if other != path:
            yield path, other


def compact(store: Store, *, days: float, apply: bool) -> int:
    """List, and with `apply` delete, what a remote store does not need any more; 3 when there is nothing."""
    if not isinstance(store, RemoteStore):
        raise CommandError(f"{store.shown(store.base, Path.cwd())} is no remote store: git keeps its former versions")
    count = 0
    for name in store.superseded(days):
        count += 1
        say(f"{'deleted' if apply else 'superseded'}  {visible(name)}")
        if apply:
            store.forget(name)
    if not count:
        say("nothing to compact")
        return 3
    if not apply:
        say(f"{plural(count, 'object')}; run `perfdl baseline compact --apply` to delete")
    return 0
