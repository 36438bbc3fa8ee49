"""Baselines of a team: merge, rename, migrate and verify baseline files.

`install` has git merge baselines with `perfdl baseline merge`. The other actions change or check baselines without
measuring anything.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from pytest_perfdl.cli.common import say, shown
from pytest_perfdl.cli.project import add_dir, store
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.visible import visible

ATTRIBUTES = ("*.json merge=perfdl", "*.trace.json.gz -text -diff merge=perfdl-trace")
"""Lines of .gitattributes in the baseline folder (gitattributes(5)): of those that match, the last one counts."""
_DAYS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    merge = actions.add_parser("merge", help="merge two versions of a baseline file (git runs this: see install)")
    merge.add_argument("base", metavar="BASE", type=Path, help="the common ancestor (%%O); empty if there is none")
    merge.add_argument("ours", metavar="OURS", type=Path, help="our version (%%A), which the result is written to")
    merge.add_argument("theirs", metavar="THEIRS", type=Path, help="their version (%%B)")
    merge.add_argument("path", metavar="PATH", nargs="?", help="path of the file in the repository (%%P), for messages")
    install = actions.add_parser(
        "install", help="have git merge baselines: write .gitattributes and the configuration of this clone"
    )
    add_dir(install)
    rename = actions.add_parser("rename", help="move baselines to the new name of a test, a test file or a folder")
    add_dir(rename)
    rename.add_argument("old", metavar="OLD", help="former id of a test, or path of a test file or folder")
    rename.add_argument("new", metavar="NEW", help="the new one")
    migrate = actions.add_parser("migrate", help="rewrite baselines of earlier versions in today's form")
    add_dir(migrate)
    migrate.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a baseline would change")
    verify = actions.add_parser(
        "verify", help="check every file below the baseline folder; exit code 1 if one is wrong"
    )
    add_dir(verify)
    compact = actions.add_parser("compact", help="list updates of a remote store that later updates replaced")
    add_dir(compact)
    compact.add_argument("--apply", action="store_true", help="delete the listed updates")
    compact.add_argument(
        "--days", type=float, default=_DAYS, metavar="N", help="keep what is younger than N days (default: %(default)g)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Do the action; 1 for a conflict, or for what --check or verify found, 3 when there is nothing to do."""
    from pytest_perfdl.cli import baseline_files

    if arguments.action == "merge":
        return _merge(arguments)
    if arguments.action == "install":
        return _install(arguments)
    stored = store(arguments)
    if arguments.action == "compact":
        return baseline_files.compact(stored, days=arguments.days, apply=arguments.apply)
    if arguments.action == "rename":
        return baseline_files.rename(stored, arguments.old, arguments.new)
    if arguments.action == "migrate":
        return baseline_files.migrate(stored, check=arguments.check)
    return baseline_files.verify(stored)


def _merge(arguments: argparse.Namespace) -> int:
    from pytest_perfdl.baseline.merge import merge_files
    from pytest_perfdl.baseline.text import LIMIT
    from pytest_perfdl.model.untrusted_files import read_bytes
    from pytest_perfdl.system.files import write_files

    try:
        base, ours, theirs = (read_bytes(path, LIMIT) for path in (arguments.base, arguments.ours, arguments.theirs))
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be read: {error.strerror}") from error
    merged = merge_files([base] if base else [], ours, theirs)
    if merged.data != ours:
        try:
            write_files({arguments.ours: merged.data})
        except OSError as error:
            raise CommandError(f"{arguments.ours} cannot be written: {error.strerror}") from error
    if not merged.conflict:
        return 0
    path = arguments.path or str(arguments.ours)
    kept = "theirs" if merged.data == theirs else "ours"
    command = "pytest --perf-update=all" + (f" {shlex.quote(merged.test)}" if merged.test else "")
    say(
        f"perfdl baseline merge: conflict in {visible(path)}: {visible(merged.conflict)}. The file has {kept}. Record "
        f"the merged code with {visible(command)}, and git add the file",
        error=True,
    )
    return 1


def _install(arguments: argparse.Namespace) -> int:
    from pytest_perfdl.baseline.objects import is_url
    from pytest_perfdl.cli.project import find_project
    from pytest_perfdl.system.files import changed, write_files
    from pytest_perfdl.system.git import git, top_of, trouble

    project = find_project()
    if is_url(arguments.dir or project.folder):
        raise CommandError("the baselines are in a remote store, which needs no merge driver: nothing to install")
    folder = Path.cwd() / arguments.dir if arguments.dir else project.root / project.folder
    nearest = next(each for each in (folder, *folder.parents) if each.is_dir())
    top = top_of(nearest)
    if top is None:
        raise CommandError(
            f"{shown(folder)} is not in a git repository{_because(trouble(nearest))}: run git init first"
        )
    settings = {
        "merge.perfdl.name": "baselines of pytest-perfdl",
        "merge.perfdl.driver": f"{shlex.quote(sys.executable)} -m pytest_perfdl.cli baseline merge %O %A %B %P",
        "merge.perfdl.recursive": "binary",
        "merge.perfdl-trace.name": "traces of pytest-perfdl (keep ours)",
        "merge.perfdl-trace.driver": "true",
    }
    for name, value in settings.items():
        if git(top, "config", "--local", "--get", name) == value:
            say(f"unchanged  git config {name} {shlex.quote(value)}")
        elif git(top, "config", "--local", name, value) is None:
            raise CommandError(f"git config {name} cannot be written: make {shown(top)}/.git/config writable")
        else:
            say(f"wrote      git config {name} {shlex.quote(value)}")
    path = folder / ".gitattributes"
    try:
        there = path.read_text(encoding="utf-8") if path.is_file() else ""
        lines = [line for line in ATTRIBUTES if line not in there.splitlines()]
        text = there + ("\n" if there and not there.endswith("\n") else "") + "".join(f"{line}\n" for line in lines)
        folder.mkdir(parents=True, exist_ok=True)
        wrote = changed({path: text.encode()})
        write_files(wrote)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{shown(path)} cannot be written: {error}") from error
    for line in ATTRIBUTES:
        say(f"{'wrote    ' if line in lines else 'unchanged'}  {shown(path)}: {line}")
    if wrote:
        say(f"commit {shown(path)}; every clone runs `perfdl baseline install` once, since git config is not committed")
    return 0


def _because(why: str) -> str:
    return f" ({why})" if why else ""
