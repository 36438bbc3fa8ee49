"""Where the files of another revision are, and what of a repository is no code of it."""

import os
import shutil
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.system.git import environment_apart
from pytest_perfdl.workers import checkout as checkout_module
from pytest_perfdl.workers.checkout import Checkout, checked_out, clear, is_installed, kept_commits, sweep
from pytest_perfdl.workers.origins import origins


@pytest.mark.parametrize(
    ("prefix", "path", "installed"),
    [
        ("repo/env", "repo/env/lib/python3.11/json/__init__.py", True),
        ("repo/env", "repo/tests/test_it.py", False),
        ("repo", "repo/lib/python3.11/site-packages/demo.py", True),
        ("repo", "repo/tests/test_it.py", False),
        (".", "repo/tests/test_it.py", False),
        (".", "repo/.venv/lib/python3.11/site-packages/demo.py", True),
    ],
    ids=["conda's library", "beside conda", "venv in place, library", "venv in place, tests", "usr", "another's venv"],
)
def test_only_the_environment_counts_as_installed(tmp_path, monkeypatch, prefix, path, installed):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / prefix))
    assert is_installed(tmp_path / path, tmp_path / "repo") is installed
    moved = Checkout(tmp_path / "repo", tmp_path / "other").path(tmp_path / path)
    assert (moved == str(tmp_path / path)) is installed


def test_a_repository_below_a_folder_of_packages_is_not_installed(tmp_path):
    tree = tmp_path / "site-packages" / "repo"
    assert not is_installed(tree / "demo.py", tree)


def test_modules_count_for_the_innermost_of_the_two_folders(tmp_path, monkeypatch):
    tree = tmp_path / "repo"
    monkeypatch.setattr(sys, "prefix", str(tree / "env"))
    files = {
        "of_tree": tree / "demo.py",
        "of_environment": tree / "env/lib/python3.11/json.py",
        "of_checkout": tree / ".git/perfdl/one/repo/demo.py",
        "of_others": tmp_path / "elsewhere/demo.py",
    }
    modules = {name: types.ModuleType(name) for name in files}
    for name, file in files.items():
        modules[name].__file__ = str(file)
    monkeypatch.setattr(sys, "modules", modules)
    checkout = str(tree / ".git/perfdl/one/repo")
    base, head = origins(checkout, str(tree), (), ""), origins(str(tree), checkout, (), "")
    assert (base.own, base.foreign) == (("of_checkout",), ("of_tree",))
    assert (head.own, head.foreign) == (("of_tree",), ("of_checkout",))


def test_a_module_without_a_path_is_nobodys(monkeypatch):
    monkeypatch.setattr(sys, "modules", {"made_up": types.ModuleType("made_up")})
    assert origins(str(Path("/one")), str(Path("/two")), (), "").own == ()


def git(root, *arguments):
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """One commit, and a worktree of the user's whose folder is on a disk that is not there just now."""
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / "demo.py").write_text("1\n")
    git(root, "add", "--all")
    git(root, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "one")
    git(root, "worktree", "add", "--quiet", "--detach", str(tmp_path / "users"), "HEAD")
    (tmp_path / "users").rename(tmp_path / "away")
    return root


def state(root):
    return git(root, "worktree", "list"), sorted(path.name for path in (root / ".git").iterdir())


def checked(repository, setup="", seconds=60.0):
    return checked_out(repository, git(repository, "rev-parse", "HEAD"), seconds=seconds, setup=setup)


def test_a_checkout_comes_on_the_same_file_system_and_goes_when_it_is_told_to(repository):
    before = state(repository)
    with checked(repository) as checkout:
        assert (checkout.root / "demo.py").read_text() == "1\n"
        assert (checkout.root.name, checkout.root.is_relative_to(repository)) == ("repo", True)
        assert git(repository, "status", "--porcelain") == ""
        sweep(repository)
        assert clear(repository) == (0, 0)
        assert (checkout.root / "demo.py").exists(), "it is in use"
    assert kept_commits(repository) == [git(repository, "rev-parse", "HEAD")]
    count, size = clear(repository)
    assert (count, size > 2) == (1, True)
    assert state(repository) == before


HOLDER = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from pytest_perfdl.workers.checkout import checked_out
with checked_out(Path(sys.argv[1]), sys.argv[2], seconds=60, setup="touch ../begun && kill -9 $PPID; sleep 60"):
    pass
"""


@pytest.mark.parametrize("state_of_worktree", ["whole", "half deleted", "deleted"])
def test_the_checkout_of_a_killed_run_is_swept_and_no_other_worktree(repository, state_of_worktree):
    before = state(repository)
    commit = git(repository, "rev-parse", "HEAD")
    subprocess.run([sys.executable, "-c", HOLDER, str(repository), commit], check=False)
    (left,) = (repository / ".git/perfdl").glob("*/repo")
    if state_of_worktree != "whole":
        (left / ".git").unlink()
    if state_of_worktree == "deleted":
        (left / "demo.py").unlink()
        left.rmdir()
    sweep(repository)
    assert state(repository) == before


def test_what_git_could_not_forget_at_the_end_the_next_sweep_makes_it_forget(repository, tmp_path, monkeypatch):
    before = state(repository)
    failing = tmp_path / "bin/git"
    failing.parent.mkdir()
    failing.write_text(
        f'#!/bin/sh\ncase "$*" in *"worktree remove"*) kill -9 $$;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    failing.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(failing.parent), prepend=os.pathsep)
        with pytest.raises(CheckoutError), checked(repository, "exit 3"):
            pass
        sweep(repository)
    assert state(repository) != before
    sweep(repository)
    assert state(repository) == before


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4\n"
REAL = "sed s/version.*/real/"
"""As Git LFS's, a filter that writes other content than commits have."""


@pytest.fixture
def stored(repository):
    """A repository with two files in Git LFS, and the content of one of them in the working tree."""
    git(repository, "config", "filter.lfs.smudge", REAL)
    git(repository, "config", "filter.lfs.clean", f"printf %s '{POINTER.decode()}'")
    git(repository, "config", "filter.lfs.required", "true")
    (repository / ".gitattributes").write_text("*.bin filter=lfs -text\n")
    (repository / "w.bin").write_bytes(b"real")
    git(repository, "add", "--all")
    git(repository, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "with data")
    return repository


def test_files_behind_filters_have_their_content_at_the_base_too(stored):
    for kept in (False, True):
        with checked(stored) as checkout:
            assert (checkout.root / "w.bin").read_bytes().startswith(b"real")
        assert checkout.is_kept == kept


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"smudge": "cat"}, "without the content of files in Git LFS that the working tree has (w.bin): run git lfs "),
        ({"smudge": "exit 3", "required": "false"}, "without the content of files in Git LFS that the working tree "),
        ({"smudge": "exit 3"}, ": fatal: w.bin: smudge filter lfs failed: install what the filter of these files runs"),
        ({"process": "no-such-lfs filter-process"}, "(Git LFS: git lfs install), and fetch their content (git lfs "),
    ],
    ids=["skipped", "not-required", "required", "missing"],
)
def test_without_that_content_nothing_is_compared(stored, settings, said):
    before = state(stored)
    for name, value in settings.items():
        git(stored, "config", f"filter.lfs.{name}", value)
    with pytest.raises(CheckoutError) as refused, checked(stored):
        pass
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    git(stored, "config", "--remove-section", "filter.lfs")
    assert state(stored) == before
    # What has been fetched since is there, also where a checkout was kept while neither side had it.
    (stored / "w.bin").write_bytes(POINTER)
    with checked(stored) as checkout:
        assert (checkout.root / "w.bin").read_bytes() == POINTER
    git(stored, "config", "filter.lfs.smudge", REAL)
    (stored / "w.bin").write_bytes(b"real")
    with checked(stored) as checkout:
        assert (checkout.root / "w.bin").read_bytes().startswith(b"real")


def test_the_setup_may_fetch_it(stored):
    git(stored, "config", "filter.lfs.smudge", "cat")
    with checked(stored, "echo real > w.bin") as checkout:
        assert (checkout.root / "w.bin").read_text() == "real\n"


def test_settings_for_any_repository_hold_for_checkouts_and_those_of_a_hook_do_not(repository, monkeypatch):
    for name in ("GIT_LFS_SKIP_SMUDGE", "GIT_SSH_COMMAND", "GIT_INDEX_FILE", "GIT_DIR", "GIT_PREFIX", "GIT_EDITOR"):
        monkeypatch.setenv(name, "1")
    assert {name for name in environment_apart() if name.startswith("GIT_")} >= {
        "GIT_LFS_SKIP_SMUDGE",
        "GIT_SSH_COMMAND",
    }
    assert not {"GIT_INDEX_FILE", "GIT_DIR", "GIT_PREFIX", "GIT_EDITOR"} & environment_apart().keys()


def test_the_setup_has_no_git_environment_of_a_hook_no_input_and_no_prompt(repository, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_INDEX_FILE", "index-of-a-hook")
    with checked(repository, "cat; env > environment") as checkout:
        lines = (checkout.root / "environment").read_text().splitlines()
    assert [line for line in lines if line.startswith("GIT_")] == ["GIT_TERMINAL_PROMPT=0"]
    assert f"PERFDL_CHECKOUT={checkout.root}" in lines


@pytest.mark.long
@pytest.mark.parametrize(
    ("setup", "seconds", "message"),
    [
        ("echo some; echo no compiler >&2; exit 3", 60, "perf_against_setup failed with exit code 3: no compiler"),
        ("sleep 600", 1, r"perf_against_setup did not finish within 1 s \(--perf-timeout\)"),
    ],
)
def test_a_setup_that_fails_is_one_line_and_leaves_nothing(repository, setup, seconds, message):
    before = state(repository)
    with pytest.raises(CheckoutError, match=message), checked(repository, setup, seconds):
        pass
    assert state(repository) == before


def test_where_no_checkout_can_be_made(repository):
    (repository / ".git/perfdl").write_text("a file\n")
    with (
        pytest.raises(CheckoutError, match=r"cannot create a checkout in .*/\.git/perfdl: File exists"),
        checked(repository),
    ):
        pass
    assert (repository / ".git/perfdl").read_text() == "a file\n"


def test_options_of_every_kind_are_moved(tmp_path):
    checkout = Checkout(tmp_path / "repo", tmp_path / "other")
    inside, moved = tmp_path / "repo/data", tmp_path / "other/data"
    options = {
        "text": str(inside),
        "path": inside,
        "list": [str(inside), inside],
        "tuple": (inside, 3),
        "outside": tmp_path / "elsewhere",
        "relative": Path("data"),
        "word": "data",
        "number": 3,
    }
    assert checkout.options(options) == options | {
        "text": str(moved),
        "path": moved,
        "list": [str(moved), moved],
        "tuple": (moved, 3),
    }


def test_a_path_through_a_link_is_moved_and_a_link_within_the_tree_stays_one(tmp_path):
    (tmp_path / "repo/perf").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "repo")
    (tmp_path / "repo/tests").symlink_to("perf")
    checkout = Checkout(tmp_path / "repo", tmp_path / "repo/.git/perfdl/one/repo")
    assert checkout.path(tmp_path / "link/perf") == str(checkout.root / "perf")
    assert checkout.path(tmp_path / "repo/tests") == str(checkout.root / "tests")
    assert checkout.path(checkout.root / "perf") == str(checkout.root / "perf")


def test_processes_that_a_step_starts_import_their_sides_code(tmp_path, monkeypatch):
    checkout = Checkout(tmp_path / "repo", tmp_path / "other")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/repo/src:/usr/share/demo")
    assert checkout.environment() == {"PYTHONPATH": f"{tmp_path}/other/src:/usr/share/demo"}
    monkeypatch.delenv("PYTHONPATH")
    assert checkout.environment() == {}


def test_they_do_so_where_the_working_tree_is_installed_editable(tmp_path, monkeypatch):
    for side in ("repo", "other"):
        (tmp_path / side / "src").mkdir(parents=True)
        (tmp_path / side / "src/demo_installed.py").write_text(f"side = {side!r}")
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "demo.pth").write_text(f"import this_is_code\n{tmp_path}/repo/src\n/nowhere\n")
    monkeypatch.setattr(checkout_module.sysconfig, "get_path", lambda name: str(site))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "repo/src")])
    monkeypatch.setenv("PYTHONPATH", "/usr/share/demo")
    environment = Checkout(tmp_path / "repo", tmp_path / "other").environment()
    assert environment == {"PYTHONPATH": f"{tmp_path}/other/src:/usr/share/demo"}
    # As the editable install would lead a process that a step starts.
    installed = f"import sys; sys.path.append({str(tmp_path / 'repo/src')!r})"
    code = f"{installed}; import demo_installed; print(demo_installed.side)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "other\n"


def test_a_folder_that_the_revision_lacks_is_the_nearest_that_it_has(tmp_path):
    (tmp_path / "other/there").mkdir(parents=True)
    checkout = Checkout(tmp_path / "repo", tmp_path / "other")
    assert checkout.folder(tmp_path / "repo/there/new/deep") == str(tmp_path / "other/there")
    assert checkout.folder(tmp_path) == str(tmp_path)


def test_only_the_working_tree_s_own_editable_installs_come_first_on_the_import_path(tmp_path, monkeypatch):
    """Where this process runs in a checkout (`perfdl bisect`), the installed repository is another folder."""
    tree, other, root = tmp_path / "tree", tmp_path / "installed", tmp_path / "root"
    monkeypatch.setattr(checkout_module, "editable_folders", lambda: [str(other / "src"), str(tree / "src")])
    monkeypatch.setattr(sys, "path", [str(tree / "lib"), "/usr/lib/python"])
    assert Checkout(tree, root).import_path() == [str(root / "src"), str(root / "lib"), "/usr/lib/python"]


def test_finders_of_editable_installs_lead_to_the_checkout(tmp_path, monkeypatch):
    """Setuptools' keep where packages are, whatever the folders of these are called (`package-dir`)."""
    tree, root = tmp_path / "tree", tmp_path / "root"
    finder = types.ModuleType("demo_finder")
    finder.MAPPING = {
        "demo": f"{tree}/source",
        "a.b": f"{tree}/lib/a/b",
        "mod": f"{tree}/src/mod.py",
        "far": "/far/far",
    }
    finder.NAMESPACES = {"a": [f"{tree}/lib/a", "/far/a"]}
    monkeypatch.setitem(sys.modules, "demo_finder", finder)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, type("Finder", (), {"__module__": "demo_finder"})])
    assert checkout_module.editable_folders()[-3:] == [f"{tree}/lib", f"{tree}/src", "/far"]
    checkout_module.move_editable_installs(Checkout(tree, root))
    assert {
        "demo": f"{root}/source", "a.b": f"{root}/lib/a/b", "mod": f"{root}/src/mod.py", "far": "/far/far"
    } == finder.MAPPING  # fmt: skip
    assert {"a": [f"{root}/lib/a", "/far/a"]} == finder.NAMESPACES


def test_another_worktree_within_the_tree_has_no_place_in_a_checkout(tmp_path, monkeypatch):
    tree, base = tmp_path / "tree", tmp_path / "base"
    other = tree / ".worktrees/other"
    (other / "src").mkdir(parents=True)
    (other / ".git").write_text(f"gitdir: {tree}/.git/worktrees/other\n")
    checkout = Checkout(tree, base)
    assert checkout.path(other / "src") == str(other / "src")
    assert checkout.path(tree / "src") == str(base / "src")
    monkeypatch.setattr(sys, "path", [str(other / "src"), str(tree / "src")])
    assert checkout.import_path() == [str(other / "src"), str(base / "src")]
    # Beside a checkout lies what it builds.
    assert checkout.path(tree / ".git/perfdl/torch_extensions") == str(tree / ".git/perfdl/torch_extensions")
    # A checkout may itself be such a worktree.
    inner = Checkout(other, base)
    assert inner.path(other / "src") == str(base / "src")


def test_variables_that_the_other_side_does_not_set_in_the_same_way_are_unset_there(repository, monkeypatch):
    (repository / "same.py").write_text("os.environ['PERFDL_SAME'] = '1'\n")
    (repository / "other.py").write_text("os.environ['PERFDL_OTHER'] = '1'\n")
    git(repository, "add", ".")
    git(repository, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "two")
    (repository / "other.py").write_text("    os.environ['PERFDL_SAME'] = '1'\n")
    (repository / "same.py").write_text("os.environ['PERFDL_OTHER'] = '2'\n")
    (repository / "README.md").write_text("PERFDL_SAME=1 is set, and PERFDL_UNNAMED is not\n")
    # As one that git does not know yet.
    (repository / "new.py").write_text("os.environ['PERFDL_NEW'] = os.environ['PERFDL_OTHER_KIND']\n")
    began = dict(os.environ)
    names = ("PERFDL_SAME", "PERFDL_OTHER", "PERFDL_NEW", "PERFDL_UNNAMED", "PYTEST_PERFDL_NOTE")
    for name in names:
        monkeypatch.setenv(name, "1")
    with checked(repository) as checkout:
        assert checkout.unset(began) == {"PERFDL_OTHER": None, "PERFDL_NEW": None}
        assert checkout.unset({**began, "PERFDL_OTHER": "0"}) == {"PERFDL_OTHER": "0", "PERFDL_NEW": None}
        assert checkout.unset(dict(os.environ)) == {}
        assert replace(checkout, root=repository).unset(began) == {}
