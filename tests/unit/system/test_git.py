"""What git tells this package, whatever a user has set: every reader of git, with a plain and with a hostile setup."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import pytest_perfdl
from pytest_perfdl.baseline import code, recorded_commit
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.ci import job
from pytest_perfdl.cli import diff_inputs, prune
from pytest_perfdl.machine import fitness
from pytest_perfdl.model.errors import GitError, PerfdlError
from pytest_perfdl.model.record import Code
from pytest_perfdl.report import benchmark_json
from pytest_perfdl.run import definitions, selection
from pytest_perfdl.run.revisions import Revisions
from pytest_perfdl.runs import history as runs_history
from pytest_perfdl.runs.bisect import child, history, posterior
from pytest_perfdl.system import git
from pytest_perfdl.workers import checkout
from unit.runs.history.records import Repository, record

STEP = "def step():\n    return {0}\n\n\ndef other():\n    return {1}\n"
WAIVER = '[[waiver]]\ntest = "{0}"\nlimit = "12%"\nuntil = 2099-12-01\nwhy = "x"\nwho = "ana"\n'
NAMES = ("model.py", "tests/test_gpt.py", "data[1].txt", "sp ace ü.py", "new.py", "touched.py")
SIGNATURE = """
gpgsig -----BEGIN PGP SIGNATURE-----
 iQ
 -----END PGP SIGNATURE-----
"""

HOSTILE = """
[color]
    ui = always
    diff = always
[core]
    abbrev = 4
    fsmonitor = {program}
    pager = {program}
    quotePath = true
    splitIndex = true
    untrackedCache = true
    attributesFile = {attributes}
    hooksPath = {hooks}
[diff]
    algorithm = patience
    autoRefreshIndex = false
    colorMoved = zebra
    context = 0
    dstPrefix = there/
    external = {program}
    ignoreSubmodules = all
    indentHeuristic = false
    interHunkContext = 9
    mnemonicPrefix = true
    noPrefix = true
    orderFile = {order}
    relative = true
    renameLimit = 1
    renames = copies
    srcPrefix = here/
    submodule = log
    suppressBlankEmpty = true
    wordRegex = .
    wsErrorHighlight = all
[diff "odd"]
    command = {program}
    textconv = {program}
    binary = true
[fetch]
    prune = true
    pruneTags = true
    recurseSubmodules = true
    writeCommitGraph = true
[format]
    pretty = email
[gpg]
    program = {program}
[i18n]
    logOutputEncoding = UTF-16
[log]
    abbrevCommit = true
    date = relative
    decorate = full
    diffMerges = off
    follow = true
    mailmap = true
    showRoot = false
    showSignature = true
[notes]
    displayRef = refs/notes/*
[pager]
    diff = {program}
    log = {program}
[safe]
    bareRepository = explicit
    directory = *
[status]
    showUntrackedFiles = no
[submodule]
    recurse = true
[submodule "sub"]
    ignore = all
[worktree]
    useRelativePaths = true
"""


class World(Repository):
    """A repository with everything that commands tell about: signed commits, a merge, a submodule, odd names."""

    def __init__(self, folder):
        super().__init__(folder / "name")
        self.folder = folder
        inner = Repository(folder / "inner")
        self.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.root), "sub")
        for name, text in {
            "model.py": STEP.format(1, 1), "tests/test_gpt.py": "def test_step(): ...\n", "data[1].txt": "1\n",
            "sp ace ü.py": "1\n", "touched.py": "1\n", "waivers.toml": WAIVER.format("a"), ".gitignore": "*.log\n",
        }.items():  # fmt: skip
            self.put(name, text)
        self.first = self.signed("first ü")
        self.put("model.py", STEP.format(2, 1))
        self.signed("step", record(5e7))
        self.git("checkout", "--quiet", "-b", "side")
        self.put("side.py", STEP.format(3, 3))
        self.signed("on the side")
        self.git("checkout", "--quiet", "main")
        self.git("merge", "--quiet", "--no-ff", "-m", "merge", "side")
        self.signed("again", record(6e7))
        old = replace(record(), test="tests/test_old.py::test_step")
        self.signed("to be moved", old)
        moved = self.path(replace(old, test="tests/test_moved.py::test_step"))
        moved.parent.mkdir()
        self.git("mv", str(self.path(old)), str(moved))
        self.moved = moved
        self.last = self.signed("moved")
        (folder / "origin").mkdir()
        self.git("init", "--quiet", "--bare", "-b", "main", str(folder / "origin"))
        self.git("remote", "add", "origin", str(folder / "origin"))
        self.git("push", "--quiet", "origin", "main")
        # Of the working tree: changed, new, ignored, and written again with what was there.
        self.put("model.py", STEP.format(2, 7))
        self.put("new.py", "1\n")
        self.put("made.log", "1\n")
        self.put("waivers.toml", WAIVER.format("a") + WAIVER.format("b"))
        self.write(record(7e7))
        (inner.root / "inner.py").write_text("1\n")
        self.put("sub/pytest.ini", "[pytest]\naddopts =\n")
        os.utime(self.root / "touched.py", ns=(0, 0))
        self.other = folder / "other"
        self.git("worktree", "add", "--quiet", "--detach", str(self.other), self.last)

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def signed(self, message, *records):
        """Commit, with a signature that only `gpg.program` can tell about."""
        made = self.commit(message, *records)
        head, _, text = self.git("cat-file", "commit", made).partition("\n\n")
        (self.folder / "commit").write_text(f"{head}{SIGNATURE}\n{text}\n")
        signed = self.git("hash-object", "-t", "commit", "-w", str(self.folder / "commit"))
        self.git("reset", "--quiet", "--soft", signed)
        return signed


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


def by_content(world):
    """The commit that `test_step`'s baseline is of, by the files that it names."""
    used = code.contents(world.root, world.last, ["model.py", "data[1].txt", "sub"])
    return replace(record(), code=Code({name: each[:12] for name, each in used.items()}))


def commits(world):
    found = history.read_history(world.root, world.first)
    return found, [history.undone(found, number) for number in range(1, len(found.commits))]


def likely(world):
    blamed = posterior.Blamed(frozenset({("model.py", "step")}))
    return posterior.prior_of(history.read_history(world.root, world.first), blamed)


def kept(world, folder):
    suite = child.Suite(
        history.read_history(world.root, world.first, "HEAD"), world.root, None, world.root / "tests/test_gpt.py", "",
        world.first,
    )  # fmt: skip
    child.keep_tests(suite, folder)
    return {path.name: path.read_text() for path in sorted(folder.rglob("*.py"))}


def checked_out(world):
    with checkout.checked_out(world.root, world.last, seconds=60) as made:
        found = {
            path.relative_to(made.root).as_posix(): path.read_bytes()
            for path in sorted(made.root.rglob("*"))
            if path.is_file() and path.name != ".git"
        }
    return found, checkout.kept_commits(world.root)[:1], checkout.common_folder(world.root), checkout.clear(world.root)


def diffs(world):
    made = checkout.Checkout(world.root, world.other)
    touched = definitions.touched(["model.py"], made)
    lines = ["model.py(6): other"]
    return definitions.source_diffs(lines, made, world.last), definitions.uncalled_diffs(touched, made, world.last)


def revisions(world):
    config = SimpleNamespace(rootpath=world.root)
    found = Revisions(config, SimpleNamespace(against="HEAD~1"), Store(world.root, "baselines"), [])
    return found.top, found.commit, found.against


READERS = {
    "baseline/code": lambda world, _: (
        code.measured_code(world.root, (*NAMES, "made.log", "sub/pytest.ini"), ()),
        code.contents(world.root, world.first, NAMES),
        code.hashes(world.root, NAMES),
    ),
    "baseline/files": lambda world, _: sorted(Store(world.root, "baselines").restorable()),
    "baseline/recorded_commit": lambda world, _: (
        recorded_commit.code_of(by_content(world), world.moved, world.root),
        recorded_commit.code_of(replace(record(), code=Code({"model.py": "0" * 12})), world.moved, world.root),
        list(recorded_commit.candidates(world.root, by_content(world).code.files)),
        recorded_commit.few(world.root, [by_content(world).code.files], [world.first]),
    ),
    "runs/bisect/child": kept,
    "runs/bisect/history": lambda world, _: (commits(world), history.working_tree_state(world.root)),
    "runs/bisect/posterior": lambda world, _: likely(world),
    "ci/job": lambda world, _: [
        job.find(world.root, each)
        for each in (job.Base("branch"), job.Base("branch", "main"), job.Base("revision", "origin/main"))
    ],
    "cli/bisect": lambda world, _: git.commit_of(world.root, "main~1"),
    "cli/diff_inputs": lambda world, _: [
        (name, each.side.label, list(each.side.step_ns)) for name, each in here(world, diff_inputs.load).items()
    ],
    "cli/prune": lambda world, _: prune._is_sparse(world.root, "model.py"),
    "cli/refresh": lambda world, _: git.trouble(world.root),
    "runs/history": lambda world, _: list(runs_history.measurements(world.root, "baselines", pytest.fail)),
    "machine/fitness": lambda world, _: fitness.history(world.root),
    "report/benchmark_json": lambda world, _: benchmark_json._commit_info(world.root, world.last),
    "run/definitions": lambda world, _: (sorted(definitions._list_files(world.root, world.first)), diffs(world)),
    "run/revisions": lambda world, _: revisions(world),
    "run/session": lambda world, _: git.web_address(world.root),
    "run/selection": lambda world, _: selection.resolve(
        world.root, SimpleNamespace(waivers="waivers.toml", against="HEAD~2"), {}
    ),
    "system/git": lambda world, _: (
        [git.tree_of(world.root, "HEAD"), git.top_of(world.root / "tests"), git.web_address(world.root)],
        [git.trouble(world.root), git.content(world.root, world.first, "data[1].txt")],
        list(git.blobs(world.root, [f"{world.first}:model.py", "0" * 40], 100)),
    ),
    "workers/checkout": lambda world, _: (git.said(None), checked_out(world)),
}
"""Everything that reads git, by the module that it is in."""


def here(world, load):
    before = Path.cwd()
    os.chdir(world.root)
    try:
        return load("HEAD", "baselines")
    finally:
        os.chdir(before)


def all_of(world, folder):
    recorded_commit._log.cache_clear()
    return {name: reader(world, folder / name.replace("/", "-")) for name, reader in READERS.items()}


def test_no_reader_of_git_is_left_out():
    top = Path(pytest_perfdl.__file__).parent
    using = re.compile(
        r"^ *from pytest_perfdl\.system\.git import (?!(?:environment_apart|MADE_BY_PYTHON)$)", re.MULTILINE
    )
    found = {
        path.relative_to(top).with_suffix("").as_posix() for path in top.rglob("*.py") if using.search(path.read_text())
    }
    assert found == READERS.keys() - {"system/git"}


@pytest.mark.long
def test_no_setting_of_a_user_changes_what_is_read_writes_the_index_or_runs_a_program(world, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "plain"))
    plain = all_of(world, tmp_path / "kept")
    # What is compared is not nothing.
    assert [each.name for each in plain["runs/bisect/history"][0][0].commits[1:]][-1] == history.WORKING_TREE
    assert plain["runs/bisect/history"][0][1][-1] is None
    assert plain["baseline/recorded_commit"][0].commit == world.last
    assert plain["ci/job"][0].commit == git.commit_of(world.root, "HEAD~1")
    assert [each.added for each in plain["run/selection"].waivers] == [False, True]
    assert (of_commit := plain["run/definitions"][1])[0][0].text == of_commit[1][0].text != ""
    assert len(plain["runs/history"]) == 5

    witness, index = tmp_path / "ran", world.root / ".git" / "index"
    files = {name: tmp_path / name for name in ("program", "attributes", "order", "hooks", "hostile")}
    files["program"].write_text(f'#!/bin/sh\necho "$0 $@" >> {witness}\necho odd\n')
    files["program"].chmod(0o755)
    files["attributes"].write_text("* diff=odd\n")
    files["order"].write_text("z*\n")
    files["hooks"].mkdir()
    for name in ("post-index-change", "post-checkout", "reference-transaction", "post-rewrite", "pre-auto-gc"):
        (files["hooks"] / name).symlink_to(files["program"])
    files["hostile"].write_text(HOSTILE.format(**files))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(files["hostile"]))
    for name, value in {
        "GIT_EXTERNAL_DIFF": str(files["program"]), "GIT_DIFF_OPTS": "--unified=0", "GIT_PAGER_IN_USE": "1",
        "GIT_ICASE_PATHSPECS": "1", "GIT_NOTES_REF": "refs/notes/x", "GIT_PAGER": str(files["program"]),
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "log.showSignature", "GIT_CONFIG_VALUE_0": "true",
        "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    os.utime(world.root / "touched.py", ns=(1, 1))
    before = index.read_bytes(), index.stat().st_mtime_ns, index.stat().st_ino

    hostile = all_of(world, tmp_path / "hostile-kept")

    for name in READERS:
        assert hostile[name] == plain[name], name
    assert not witness.exists(), witness.read_text()
    assert (index.read_bytes(), index.stat().st_mtime_ns, index.stat().st_ino) == before
    assert not list((world.root / ".git").glob("sharedindex.*"))


@pytest.mark.parametrize(
    "command, readers",
    [
        (
            "cat-file",
            ["baseline/recorded_commit", "runs/bisect/posterior", "cli/diff_inputs", "run/selection", "system/git"],
        ),
        ("diff-files", ["baseline/code"]),
        ("diff-index", ["baseline/files", "baseline/recorded_commit", "runs/bisect/history", "runs/history"]),
        ("hash-object", ["runs/bisect/history", "runs/history"]),
        ("log", ["baseline/recorded_commit", "runs/bisect/history", "runs/history"]),
        ("ls-files", ["baseline/code", "runs/bisect/history", "cli/prune", "runs/history"]),
        ("ls-tree", ["baseline/code", "baseline/files", "runs/bisect/child", "cli/diff_inputs", "run/selection"]),
        ("merge-base", ["runs/bisect/history"]),
        ("rev-parse", ["runs/bisect/history", "ci/job", "cli/diff_inputs", "runs/history", "run/selection"]),
        ("worktree", ["workers/checkout"]),
    ],
)
def test_what_git_cannot_tell_is_no_empty_answer(world, tmp_path, monkeypatch, command, readers):
    recorded_commit._log.cache_clear()
    real = shutil.which("git")
    (tmp_path / "git").write_text(
        "#!/bin/sh\n"
        f'for word in "$@"; do [ "$word" = {command} ] && echo "fatal: it is broken" >&2 && exit 128; done\n'
        f'exec {real} "$@"\n'
    )
    (tmp_path / "git").chmod(0o755)
    os.utime(world.root / "touched.py", ns=(2, 2))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in readers:
        try:
            said = repr(READERS[name](world, tmp_path / name.replace("/", "-")))
        except PerfdlError as error:
            said = str(error)
        assert "it is broken" in said, f"{name}: {said}"
        assert "\n" not in said


def test_without_git_it_is_said_to_be_missing(world, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git.trouble(world.root) == "git is not installed"
    with pytest.raises(GitError, match=r"^git log failed: git is not installed$"):
        git.read(world.root, "log")
    slow = tmp_path / "git"
    slow.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    slow.chmod(0o755)
    with pytest.raises(GitError, match=r"^git log failed: git did not finish in time$"):
        git.read(world.root, "log", seconds=0.2)


@pytest.mark.parametrize("name", ["", "-q", "--help", "^HEAD", "HEAD..HEAD~1", "HEAD\0", "nowhere"])
def test_a_name_that_is_no_commit_is_none(world, name):
    assert git.commit_of(world.root, name) is None
