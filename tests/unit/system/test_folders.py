"""Folders of our own: deleted when their holder is gone, and never anything else."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_perfdl
from pytest_perfdl.system import folders

PACKAGE = Path(pytest_perfdl.__file__).parent
HOLDER = """
import sys, time
from pathlib import Path
from pytest_perfdl.system import folders
folder = folders.make(Path(sys.argv[1]), "scratch")
(folder.path / "content").write_text("something")
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def abandoned(tmp_path):
    """A folder whose holder was killed."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    path = Path(holder.stdout.readline().strip())
    folders.sweep(tmp_path, "scratch")
    assert path.is_dir(), "its holder lives"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    return path


def test_what_a_killed_process_has_left_is_swept(tmp_path, abandoned):
    folders.sweep(tmp_path, "checkout")
    assert abandoned.is_dir(), "made for something else"
    folders.sweep(tmp_path, "scratch")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_kept_while_its_holder_lives_and_children_do_not_hold_it(tmp_path):
    folder = folders.make(tmp_path, "scratch")
    folders.sweep(tmp_path, "scratch")
    assert folder.path.is_dir()
    assert not os.get_inheritable(folder._lock)
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_maker_or_remover_that_was_killed_halfway_leaves_an_empty_folder_which_is_swept(tmp_path):
    (tmp_path / f"pytest-perfdl-scratch-{'0' * 16}").mkdir()
    folders.sweep(tmp_path, "scratch")
    assert list(tmp_path.iterdir()) == []


def lookalike(path):
    (path / "users").mkdir(parents=True)
    (path / "users/work.py").write_text("precious")
    return path


def test_nothing_is_deleted_that_is_not_provably_ours(tmp_path, abandoned):
    precious = lookalike(tmp_path / "precious")
    (precious / ".perfdl-lock").touch()
    ours = abandoned.name
    without_lock = lookalike(tmp_path / f"pytest-perfdl-scratch-{'1' * 16}")
    named_otherwise = lookalike(tmp_path / f"{ours}.bak")
    (named_otherwise / ".perfdl-lock").touch()
    link = tmp_path / f"pytest-perfdl-scratch-{'2' * 16}"
    link.symlink_to(precious)
    linked_lock = lookalike(tmp_path / f"pytest-perfdl-scratch-{'3' * 16}")
    (linked_lock / ".perfdl-lock").symlink_to(abandoned / ".perfdl-lock")
    folders.sweep(tmp_path, "scratch")
    assert not abandoned.exists()
    for kept in (precious, without_lock, named_otherwise, link, linked_lock):
        assert (kept / "users/work.py").read_text() == "precious"


def test_a_folder_of_somebody_else_is_not_deleted(tmp_path, abandoned, monkeypatch):
    monkeypatch.setattr(folders.os, "geteuid", lambda: os.getuid() + 1)
    folders.sweep(tmp_path, "scratch")
    assert (abandoned / "content").exists()


def test_a_folder_that_was_exchanged_is_not_deleted(tmp_path):
    folder = folders.make(tmp_path, "scratch")
    folder.path.rename(tmp_path / "moved")
    lookalike(folder.path)
    (folder.path / ".perfdl-lock").touch()
    folder.remove()
    assert (folder.path / "users/work.py").exists()


def test_links_are_not_followed_and_what_a_build_made_read_only_goes_too(tmp_path):
    precious = lookalike(tmp_path / "precious")
    parent = tmp_path / "ours"
    folder = folders.make(parent, "scratch")
    (folder.path / "link").symlink_to(precious)
    inner = folder.path / "build/cache"
    inner.mkdir(parents=True)
    (inner / "link").symlink_to(precious / "users")
    (inner / "package").touch()
    inner.chmod(0o500)
    inner.parent.chmod(0o500)
    folder.remove()
    assert list(parent.iterdir()) == []
    assert (precious / "users/work.py").exists()


def test_a_file_is_not_deleted_through_a_link_that_leads_elsewhere(tmp_path):
    precious = lookalike(tmp_path / "precious")
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "link").symlink_to(precious / "users")
    (ours / "link.py").symlink_to(precious / "users/work.py")
    with pytest.raises(OSError, match="a symbolic link points outside"):
        folders.delete_file(ours / "link/work.py", ours)
    folders.delete_file(ours / "link.py", ours)
    folders.delete_file(ours / "absent.py", ours)
    assert [path.name for path in ours.iterdir()] == ["link"]
    assert (precious / "users/work.py").exists()


def test_this_is_the_only_place_that_makes_folders_or_deletes_anything():
    word = re.compile(r"\b(rmtree|removedirs|rmdir|TemporaryDirectory|mkdtemp|unlink|os\.remove)\b")
    found = {path.name for path in PACKAGE.rglob("*.py") if word.search(path.read_text())}
    # The git folder's own is removed only when it is empty, by rmdir.
    assert found == {"folders.py", "checkout.py"}
    assert len(word.findall((PACKAGE / "workers/checkout.py").read_text())) == 1
