"""Finds the commit with the code that a baseline was recorded with, and whether today's code is the same."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pytest_perfdl.baseline.code import contents, present
from pytest_perfdl.model.record import SHORT_HASH, MeasurementPlan, Record, Scalar
from pytest_perfdl.model.units import some
from pytest_perfdl.system.distributions import installed
from pytest_perfdl.system.git import LOG_SECONDS, cut_off, git, modified, read, top_of, trouble

# Finds the baseline commit: the one with the code that the baseline was recorded with.
#
# A baseline is recorded before the commit that contains it, so the commit named in it is only its parent, without the
# recorded change. The content of the files that its test loaded or read decides: a commit that has them has the
# baseline's code, whatever else it changes. So baselines keep their commit across squash merges, rebases and merges of
# other pull requests.


_EARLIER = 10
"""How many earlier changes of a baseline's file are looked at."""
MOST_COMMITS = 10_000
"""How many commits that touch a test's files are looked at, the newest first."""
_MOST_PATHS = 24
"""Paths that git is asked for at once."""
_TELLING = 4
"""Files, of those that a commit has otherwise, that are asked for before the others."""
_NO_COMMIT = "no commit contains the code that the baseline was recorded with"

Files = Mapping[str, str]
"""Path from the repository's top -> first digits of the content's hash."""


@dataclass(frozen=True, slots=True)
class BaselineCode:
    """A commit with the code of a baseline, or the reason why there is none, in one line."""

    commit: str | None
    reason: str = ""
    note: str = ""
    """A note if the commit differs from the recorded files, in one line."""
    base: Record | None = None
    """The baseline whose code it is."""


def pair_of(
    own: Record | None,
    others: Sequence[Record],
    path_of: Callable[[Record], Path],
    root: Path,
    *,
    prefer: Sequence[str] = (),
) -> BaselineCode:
    """The baseline commit, from all baselines of a test.

    Its own baseline supplies it, else the newest of those under other keys for which there is one: code does not depend
    on where it was timed.

    Parameters
    ----------
    own, others
        The test's baseline under its key, if there is one, and those under other keys.
    path_of
        Where a baseline's file is.
    root, prefer
        See `code_of`.
    """
    newest_first = sorted(others, key=lambda record: record.occasions[-1].date, reverse=True)
    first = None
    for base in (*([own] if own is not None else []), *newest_first):
        found = code_of(base, path_of(base), root, prefer=prefer)
        if found.commit is not None:
            return found
        first = first or found
    return first or BaselineCode(None, "no baseline")


def code_of(base: Record, path: Path, root: Path, *, prefer: Sequence[str] = ()) -> BaselineCode:
    """Find the commit that has the code of a baseline.

    It is the newest one in HEAD's history that has the recorded files with their content, else the one that last
    changed the baseline's file: merged by a squash, a change meets files that others changed meanwhile.

    Parameters
    ----------
    base, path
        The baseline and its file. With repeats of several recordings the last one's code counts.
    root
        Folder in the repository.
    prefer
        Commits (full hashes) that are as good as the newest one if they have the files: what is checked out already.
    """
    top = top_of(root)
    if top is None:
        return BaselineCode(None, trouble(root) or "the project is not in a git repository", base=base)
    if base.code is None:
        return BaselineCode(None, "the baseline does not contain hashes of the recorded code", base=base)
    found = _find_by_content(base.code.files, path, top, prefer)
    if found.commit is None and (why := cut_off(root)):
        found = BaselineCode(None, why)
    return replace(found, base=base)


def _find_by_content(files: Files, path: Path, top: Path, prefer: Sequence[str]) -> BaselineCode:
    head = git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    if head is None:
        return BaselineCode(None, "the repository has no commits")
    if not files:
        return BaselineCode(None, "the baseline lists no files of this repository")
    if commit := having(top, files, (*prefer, head)) or having(top, files, candidates(top, files)):
        return BaselineCode(commit)
    if why := cut_off(top):
        # The oldest commit that is there seems to have changed every file.
        return BaselineCode(None, why)
    carrier = _carrier(top, path)
    if carrier is None:
        uncommitted = present(top, files) == files
        return BaselineCode(
            None, f"{_NO_COMMIT}: commit the code together with the baseline" if uncommitted else _NO_COMMIT
        )
    there = contents(top, carrier, list(files))
    other = [name for name, content in files.items() if there.get(name, "")[:SHORT_HASH] != content]
    return BaselineCode(
        carrier,
        note="no commit contains exactly the files that the baseline was recorded with; the comparison uses commit "
        f"{carrier[:9]}, which last changed the baseline file and differs in: {some(other)}",
    )


def few(top: Path, wanted: Sequence[Files], prefer: Sequence[str] = ()) -> list[str]:
    """Few commits of HEAD's history that together have the files of several tests, those that serve most tests first.

    Each test could have the newest commit with its files; any other with them is as good, and one checkout serves all
    tests that it has the files of.

    Parameters
    ----------
    wanted
        Of each test, its files.
    prefer
        Commits (full hashes) that are chosen before others that serve as many tests.
    """
    head = git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    if head is None:
        return []
    # One of them may be gone from the repository by now.
    usable = [each for each in prefer if git(top, "merge-base", "--is-ancestor", each, head) is not None]
    newest = (having(top, files, (head,)) or having(top, files, candidates(top, files)) for files in wanted)
    options = list(dict.fromkeys((*usable, *filter(None, newest))))
    pairs = [(commit, number) for commit in options for number in range(len(wanted))]
    matches = matching(top, [commit for commit, _ in pairs], [wanted[number] for _, number in pairs])
    served = {pair for pair, matched in zip(pairs, matches, strict=True) if matched}
    waiting, chosen = {number for _, number in served}, []
    while waiting:
        best = max(options, key=lambda commit: sum((commit, number) in served for number in waiting))
        chosen.append(best)
        waiting -= {number for number in waiting if (best, number) in served}
    return chosen


def having(top: Path, files: Files, commits: Sequence[str] | Iterator[str]) -> str | None:
    """The first of some commits that has files with their content; `None` if none of them does.

    They are asked in growing groups, so that the likely ones cost little and many do not cost a process each; and first
    for the files that were wrong last, which tells most of them from the wanted one.
    """
    waiting, size = iter(commits), 1
    telling: dict[str, str] = {}
    while group := list(itertools.islice(waiting, size)):
        if telling:
            few = [{name: files[name] for name in telling}] * len(group)
            group = [commit for commit, matches in zip(group, matching(top, group, few), strict=True) if matches]
        for commit, matches in zip(group, matching(top, group, [files] * len(group)), strict=True):
            if matches:
                return commit
        if group:
            there = contents(top, group[-1], list(files))
            wrong = (name for name, content in files.items() if there.get(name, "")[:SHORT_HASH] != content)
            telling = dict.fromkeys((*telling, *itertools.islice(wrong, _TELLING)), "")
        size = min(4 * size, 256)
    return None


def matching(top: Path, commits: Sequence[str], wanted: Sequence[Files]) -> list[bool]:
    """Whether each of some commits has the files that are wanted of it."""
    asks = [f"{commit}:{name}" for commit, files in zip(commits, wanted, strict=True) for name in files]
    answers = iter(read(top, "cat-file", "--batch-check=%(objectname)", given=asks).splitlines())
    found = []
    for commit, files in zip(commits, wanted, strict=True):
        lacking, wrong = [], False
        for name, content in files.items():
            answer = next(answers, "")
            if answer.endswith(" missing"):
                lacking.append(name)
            wrong |= not answer.startswith(content) and not answer.endswith(" missing")
        if lacking and not wrong:
            # The commit of a submodule is no object of this repository.
            there = contents(top, commit, lacking)
            wrong = any(there.get(name, "")[:SHORT_HASH] != files[name] for name in lacking)
        found.append(not wrong)
    return found


def candidates(top: Path, files: Files) -> Iterator[str]:
    """Commits in HEAD's history that may have files with their content, the newest first.

    The content of files changes only at commits that touch them, merges among them that differ from a parent. Where it
    was the wanted one before such a commit, its parent is the newest commit of that line of history that has it.
    """
    head = git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    listed = _log(top, head, _places(files)) if head else ""
    seen = set()
    for parents, changed in _parse_log(listed):
        changes = [change for change in changed if change[0] in files]
        # A merge tells no changes: each of its parents may be the one.
        if (changed and not changes) or any(files[name] != old[:SHORT_HASH] for name, old in changes):
            continue
        for each in parents:
            if each not in seen:
                seen.add(each)
                yield each


@functools.lru_cache(maxsize=8)
def _log(top: Path, head: str, places: tuple[str, ...]) -> str:
    """What `_parse_log` reads; tests that use the same folders share it."""
    return read(
        top,
        *("log", "--full-history", f"--max-count={MOST_COMMITS}", "--format=%x01%P", "--raw", "--no-abbrev", "-z"),
        *(head, "--", *places),
        seconds=LOG_SECONDS,
    )


def _places(files: Files) -> tuple[str, ...]:
    """A few paths that hold some files: git compares every path that it is asked for with every change."""
    paths = set(files)
    deepest = max((name.count("/") for name in files), default=0)
    while len(paths) > _MOST_PATHS and deepest:
        paths = {path.rpartition("/")[0] if path.count("/") == deepest else path for path in paths}
        deepest -= 1
    return tuple(sorted(paths)) if len(paths) <= _MOST_PATHS else (".",)


def _parse_log(text: str) -> Iterator[tuple[list[str], list[tuple[str, str]]]]:
    """The parents of a log's commits, and of each changed file its name and its hash before; of a merge no changes."""
    for block in text.split("\x01")[1:]:
        head, *rest = (part.lstrip("\n") for part in block.split("\0"))
        # ":100644 100644 1a... 2b... M", then the name.
        changes = [(name, change.split()[2]) for change, name in itertools.pairwise(rest) if change.startswith(":")]
        yield head.split(), changes


def _carrier(top: Path, path: Path) -> str | None:
    """The commit that last changed a baseline's file, other than by moving it; `None` if it is not as committed."""
    if not path.resolve().is_relative_to(top) or modified(top, "HEAD", str(path)):
        return None
    listed = read(
        top,
        *("log", "--follow", f"-{_EARLIER}", "--format=%x01%H %P", "--raw", "-z", "HEAD", "--", str(path)),
        seconds=LOG_SECONDS,
    )
    for block in listed.split("\x01")[1:]:
        parts = [part.lstrip("\n") for part in block.split("\0")]
        if not any(part.startswith(":") and part.endswith(" R100") for part in parts):
            return parts[0].split()[0]
    return None


# Checks whether a test would run exactly the code of its baseline, in the same environment.


def difference(
    base: Record, top: Path, test: Path, *, test_hash: str, plan: MeasurementPlan, context: Mapping[str, Scalar]
) -> str:
    """What is, or may be, other than when a baseline was recorded, in words; empty where everything is the same.

    The files that the test loaded or read then decide which others it loads and reads now, but for `conftest.py` files,
    which pytest finds by itself.

    Parameters
    ----------
    base
        The baseline, under this machine's key.
    top, test
        Top of the repository, and the test's file.
    test_hash, plan, context
        Of the test and its process as they are now; how many steps are taken does not matter.
    """
    code = base.code
    if code is None:
        return "the baseline does not contain hashes of the recorded code"
    if not code.is_complete:
        ignored = f" ({some(code.ignored)})" if code.ignored else ""
        return f"the test used files without a hash in the baseline{ignored}"
    if base.test_hash != test_hash:
        return "the test changed"
    if (base.plan.threads, base.plan.seed) != (plan.threads, plan.seed):
        return "threads or seed changed"
    if changed := sorted(name for name in {*base.context, *context} if base.context.get(name) != context.get(name)):
        return f"the environment changed ({some(changed)})"
    if changed := [name for name, version in code.packages.items() if installed(name) != version]:
        return f"packages changed ({some(changed)})"
    now = present(top, code.files)
    if changed := [name for name, content in code.files.items() if now.get(name) != content]:
        return f"files changed ({some(changed)})"
    if not test.resolve().is_relative_to(top):
        return "the test's file is outside the repository"
    inside = PurePosixPath(test.resolve().relative_to(top).as_posix())
    conftests = [str(folder / "conftest.py") for folder in inside.parents]
    if added := [name for name in conftests if name not in code.files and (top / name).is_file()]:
        return f"files were added ({some(added)})"
    return ""
