"""Checkouts that stay for later runs: used again only as they were set up, and only so many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_perfdl.workers import checkout
from pytest_perfdl.workers.checkout import checked_out, clear, kept_commits, overlay, sweep

SETUP = "echo built > product.txt; mkdir -p build; echo deep > build/deep.txt; echo . >> ../../../../times.txt"
"""Makes two files that git does not have, one of them ignored, and notes in the working tree that it ran."""


def git(root, *arguments):
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "--quiet")
    git(root, "config", "user.email", "author@example.org")
    git(root, "config", "user.name", "Author")
    (root / ".gitignore").write_text("build/\n*.log\n")
    (root / "tool").write_text("#!/bin/sh\n")
    (root / "tool").chmod(0o755)
    (root / ".gitattributes").write_text("left_out.py export-ignore\n")
    (root / "left_out.py").write_text("")
    commit(root, 1)
    return root


def commit(root, number):
    (root / "demo.py").write_text(f"{number}\n")
    git(root, "add", "demo.py", ".gitignore", "tool", ".gitattributes", "left_out.py")
    git(root, "commit", "--quiet", "-m", "some")
    return git(root, "rev-parse", "HEAD")


def checked(root, setup=SETUP, revision="HEAD", seconds=60.0):
    return checked_out(root, git(root, "rev-parse", revision), seconds=seconds, setup=setup)


def times(root):
    """How often the setup ran."""
    return (root / "times.txt").read_text().count(".")


def test_the_next_run_uses_it_again(repository):
    with checked(repository) as first:
        assert not first.is_kept
        assert first.seconds > 0
        assert os.access(first.root / "tool", os.X_OK), "modes are right"
        assert (first.root / "left_out.py").exists(), "as in the repository, not as in an archive"
        before = git(first.root, "rev-parse", "HEAD")
    with checked(repository) as second:
        assert (second.root, second.is_kept) == (first.root, True)
        assert (second.root / "product.txt").read_text() == "built\n"
        assert git(second.root, "rev-parse", "HEAD") == before
        assert git(second.root, "status", "--porcelain") == "?? product.txt"
    assert times(repository) == 1
    assert git(repository, "worktree", "list").count("\n") == 1


def test_another_commit_with_the_same_tree_shares_it(repository):
    with checked(repository) as first:
        pass
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "empty")
    with checked(repository) as second:
        assert (second.root, second.is_kept) == (first.root, True)
        assert git(second.root, "rev-parse", "HEAD") == git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize("other", ["tree", "setup", "environment", "folder"])
def test_another_tree_or_setup_or_environment_is_another_checkout(repository, tmp_path, monkeypatch, other):
    with checked(repository) as first:
        pass
    setup = SETUP
    if other == "tree":
        commit(repository, 2)
    elif other == "setup":
        setup = f"true; {SETUP}"
    elif other == "environment":
        (tmp_path / "site/numpy-99.dist-info").mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path / "site")
    else:
        git(repository, "worktree", "add", "--quiet", "--detach", str(tmp_path / "other"))
        repository = tmp_path / "other"
        setup = SETUP.replace("../../../../times.txt", f"{tmp_path}/repo/times.txt")
    with checked(repository, setup) as second:
        assert not second.is_kept
        assert second.root != first.root
    if other in ("tree", "environment"):
        monkeypatch.undo()
        with checked(repository, revision="HEAD~1" if other == "tree" else "HEAD") as third:
            assert third.is_kept
            assert (third.root / "demo.py").read_text() == "1\n"


@pytest.mark.parametrize("other", ["variable", "named variable", "compiler", "chosen compiler", "filter", "nothing"])
def test_what_a_setup_depends_on_is_part_of_what_a_checkout_is_known_by(repository, tmp_path, monkeypatch, other):
    setup = f"{SETUP}; echo ${{MY_FLAG:-}}"
    for folder, text in (("one", "1"), ("two", "22")):
        (tmp_path / folder).mkdir()
        for name in ("cc", "my-cc"):
            (tmp_path / folder / name).write_text(f"#!/bin/sh\n# {text}\n")
            (tmp_path / folder / name).chmod(0o755)
    (tmp_path / "bin").symlink_to(tmp_path / "one")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    if other == "chosen compiler":
        monkeypatch.setenv("CXX", "my-cc -O2")
        (tmp_path / "two/cc").unlink()
        (tmp_path / "two/cc").symlink_to(tmp_path / "one/cc")
    with checked(repository, setup):
        pass
    if other == "variable":
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    elif other == "named variable":
        monkeypatch.setenv("MY_FLAG", "1")
    elif other.endswith("compiler"):
        (tmp_path / "bin").unlink()
        (tmp_path / "bin").symlink_to(tmp_path / "two")
    elif other == "filter":
        git(repository, "config", "filter.of-ours.smudge", "cat")
    else:
        # Of every shell and every job its own.
        for name in ("GITHUB_RUN_ID", "BUILD_NUMBER", "SSH_CLIENT", "OLDPWD", "COLUMNS"):
            monkeypatch.setenv(name, "7")
    with checked(repository, setup) as again:
        assert again.is_kept == (other == "nothing")


def test_without_a_setup_the_environment_does_not_matter(repository, tmp_path, monkeypatch):
    with checked(repository, ""):
        pass
    (tmp_path / "site/numpy-99.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with checked(repository, "") as again:
        assert again.is_kept


def test_what_a_test_wrote_into_it_is_undone(repository):
    with checked(repository) as first:
        (first.root / "demo.py").write_text("9\n")
        (first.root / "tool").unlink()
        (first.root / "stray.py").write_text("import demo\n")
        (first.root / "run.log").write_text("ignored\n")
        (first.root / "build/more.txt").write_text("more\n")
        (first.root / "out").mkdir()
        (first.root / "out/link").symlink_to(repository / "demo.py")
        git(first.root, "add", "stray.py")
    with checked(repository) as second:
        assert second.is_kept
        assert (second.root / "demo.py").read_text() == "1\n"
        assert os.access(second.root / "tool", os.X_OK)
        left = {path.relative_to(second.root).as_posix() for path in second.root.rglob("*") if path.is_file()}
        assert left == {
            *(".git", ".gitattributes", ".gitignore", "build/deep.txt", "demo.py", "left_out.py", "product.txt", "tool")
        }
    assert (repository / "demo.py").read_text() == "1\n", "a link is deleted itself"


def test_what_was_laid_over_it_is_undone(repository):
    (repository / "demo.py").write_text("of the head\n")
    (repository / "test_new.py").write_text("of the head\n")
    with checked(repository) as first:
        overlay(first, [repository / "demo.py", repository / "test_new.py"])
        assert (first.root / "demo.py").read_text() == "of the head\n"
    with checked(repository) as second:
        assert second.is_kept
        assert (second.root / "demo.py").read_text() == "1\n"
        assert not (second.root / "test_new.py").exists()


@pytest.mark.parametrize("harm", ["changed", "gone", "no worktree", "unreadable note", "moved repository"])
def test_where_what_was_built_is_not_as_it_was_it_is_set_up_again(repository, tmp_path, harm):
    with checked(repository) as first:
        if harm == "changed":
            (first.root / "product.txt").write_text("other\n")
        elif harm == "gone":
            (first.root / "build/deep.txt").unlink()
    if harm == "no worktree":
        (first.root / ".git").unlink()
    elif harm == "unreadable note":
        (first.root.parent / "perfdl-kept.json").write_text("{")
    elif harm == "moved repository":
        (tmp_path / "moved").mkdir()
        repository = repository.rename(tmp_path / "moved/repo")
    with checked(repository) as second:
        assert not second.is_kept
        assert (second.root / "product.txt").read_text() == "built\n"
        assert (second.root / "build/deep.txt").read_text() == "deep\n"
        assert git(second.root, "status", "--porcelain") == "?? product.txt"
    assert times(repository) == 2
    with checked(repository) as third:
        assert third.is_kept


def test_a_setup_may_change_files_of_the_commit(repository):
    setup = f"{SETUP}; echo 2 > demo.py; rm tool"
    with checked(repository, setup) as first:
        (first.root / "left_out.py").write_text("by a test\n")
    with checked(repository, setup) as second:
        assert second.is_kept
        assert git(second.root, "status", "--porcelain") == "M demo.py\n D tool\n?? product.txt"
        (second.root / "tool").write_text("by a test\n")
    with checked(repository, setup) as third:
        assert not third.is_kept
    assert times(repository) == 2


@pytest.mark.long
def test_a_submodule_that_the_setup_fetched_is_held_too(repository, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "--quiet")
    git(library, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "none")
    (library / "lib.py").write_text("1\n")
    git(library, "add", "lib.py")
    git(library, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "-m", "one")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(repository, "commit", "--quiet", "-m", "with a library")
    setup = f"git -c protocol.file.allow=always submodule --quiet update --init; {SETUP}"
    with checked(repository, setup) as first:
        assert (first.root / "lib/lib.py").read_text() == "1\n"
    with checked(repository, setup) as second:
        assert second.is_kept
        (second.root / "lib/lib.py").write_text("by a test\n")
    with checked(repository, setup) as third:
        assert not third.is_kept
        assert (third.root / "lib/lib.py").read_text() == "1\n"


RUN = """
import sys
from pathlib import Path
from pytest_perfdl.workers.checkout import checked_out
with checked_out(Path(sys.argv[1]), sys.argv[2], seconds=60) as checkout:
    print(checkout.root, checkout.is_kept, flush=True)
    sys.stdin.read()
"""


def test_a_run_beside_another_has_one_of_its_own(repository):
    head = git(repository, "rev-parse", "HEAD")
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(repository), head], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        theirs, was_kept = other.stdout.readline().split()
        assert was_kept == "False"
        with checked(repository, "") as mine:
            assert str(mine.root) != theirs
            assert not mine.is_kept
            sweep(repository)
            assert (mine.root / "demo.py").exists()
            assert Path(theirs, "demo.py").exists()
        assert not mine.root.exists()
        other.stdin.close()
        assert other.wait(60) == 0
    with checked(repository, "") as again:
        assert (str(again.root), again.is_kept) == (theirs, True)


def test_a_setup_that_was_killed_leaves_nothing_that_is_used_again(repository):
    text = RUN.replace("seconds=60)", f"seconds=60, setup={SETUP + '; kill -9 $PPID; sleep 60'!r})")
    head = git(repository, "rev-parse", "HEAD")
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", text, str(repository), head], check=False)
        assert done.returncode != 0
    assert times(repository) == 2
    assert kept_commits(repository) == []
    sweep(repository)
    assert not (repository / ".git/perfdl").exists()


def test_the_ones_that_were_not_used_for_longest_go_first(repository, monkeypatch):
    monkeypatch.setattr(checkout, "MOST", 2)
    revisions = [git(repository, "rev-parse", "HEAD"), *(commit(repository, number) for number in (2, 3))]
    for number in (0, 1, 0, 2):
        with checked(repository, "", revisions[number]):
            pass
    assert kept_commits(repository) == [revisions[2], revisions[0]]
    assert git(repository, "worktree", "list").count("\n") == 2
    monkeypatch.setattr(checkout, "MOST_BYTES", kept_size(repository, revisions[2]) + 1)
    sweep(repository)
    assert kept_commits(repository) == [revisions[2]]
    monkeypatch.setattr(checkout, "MOST_BYTES", 1)
    sweep(repository)
    assert not (repository / ".git/perfdl").exists()


def kept_size(repository, revision):
    (size,) = (
        checkout.size(path) for path in (repository / ".git/perfdl").iterdir() if checkout.commit(path) == revision
    )
    return size


def test_clearing_takes_all_of_them(repository):
    for revision in (git(repository, "rev-parse", "HEAD"), commit(repository, 2)):
        with checked(repository, "", revision):
            pass
    count, size = clear(repository)
    assert count == 2
    assert size > 20
    assert clear(repository) == (0, 0)
    assert git(repository, "worktree", "list").count("\n") == 0
