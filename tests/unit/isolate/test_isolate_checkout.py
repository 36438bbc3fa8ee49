"""Where the files of another revision are, and what of a repository is no code of it."""

import sys
import types
from pathlib import Path

import pytest

from pytest_perfdl.isolate.checkout import Checkout, is_installed
from pytest_perfdl.isolate.worker import _origins


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
    base, head = _origins(checkout, str(tree), ""), _origins(str(tree), checkout, "")
    assert (base.own, base.foreign) == (("of_checkout",), ("of_tree",))
    assert (head.own, head.foreign) == (("of_tree",), ("of_checkout",))


def test_a_module_without_a_path_is_nobodys(monkeypatch):
    monkeypatch.setattr(sys, "modules", {"made_up": types.ModuleType("made_up")})
    assert _origins(str(Path("/one")), str(Path("/two")), "").own == ()
