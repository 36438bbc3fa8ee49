"""Environments mixed of two real ones."""

import os
import subprocess
import venv

import pytest
from plugin.project import environment, install

from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.runs.bisect.mixtures import PYTHON, Environments, complaints, owners
from pytest_perfdl.workers.interpreter import describe, differences


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    """Two that differ in the version of `fast`, in the files of `same_version`, and in what only one of them has."""
    root = tmp_path_factory.mktemp("mixtures")
    equal = {"equal": ("1.0", "NAME = 'equal'")}
    old = environment(
        root / "old", bare=True, fast=("1.0", "x = 1"), same_version=("1.0", "x = 1"), gone=("1", ""), **equal
    )
    new = environment(
        root / "new", bare=True, fast=("2.0", "x = 2"), same_version=("1.0", "x = 2"), added=("1", ""), **equal
    )
    return Environments(describe(str(old)), describe(str(new)))


def imported(interpreter, expression, *modules):
    command = [interpreter, "-c", f"import {', '.join(modules)}; print({expression})"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_what_differs(environments):
    differing = environments.differing()

    assert list(differing) == ["added", "fast", "gone", "same-version"]
    assert differing["fast"] == ("1.0", "2.0")
    assert differing["added"] == ("not installed", "1")
    assert differing["gone"] == ("1", "not installed")
    old, new = differing["same-version"]
    assert old.startswith("1.0 (")
    assert new.startswith("1.0 (")
    assert old != new


def test_a_mixture_has_what_was_chosen_of_the_new_one(environments, tmp_path):
    mixed = environments.mix(frozenset({"fast", "added", "gone"}), tmp_path / "mixed")

    assert list(differences(environments.old, describe(str(mixed)))) == ["added", "fast", "gone"]
    assert list(differences(describe(str(mixed)), environments.new)) == ["same-version"]
    assert imported(mixed, "fast.x, same_version.x, equal.NAME", "fast", "same_version", "equal") == "2 1 equal"


@pytest.mark.parametrize("chosen", [(), ("added", "fast", "gone", "same-version")])
def test_a_mixture_of_nothing_or_everything_is_one_of_the_two(environments, tmp_path, chosen):
    mixed = describe(str(environments.mix(frozenset(chosen), tmp_path / "mixed")))

    assert not differences(environments.new if chosen else environments.old, mixed)


def test_scripts_run_the_mixture_and_editable_installations_lead_to_their_source(tmp_path):
    old, new = environment(tmp_path / "old", bare=True), environment(tmp_path / "new", bare=True)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "linked.py").write_text("x = 7")
    (packages,) = (tmp_path / "old").glob("lib/python*/site-packages")
    install(packages, "tool", "1.0", "x = 1")
    (packages / "linked.pth").write_text(f"{tmp_path / 'source'}\n")
    script = tmp_path / "old" / "bin" / "tool"
    script.write_text(f"#!{old}\nimport sys, linked\nprint(sys.prefix, linked.x)\n")
    script.chmod(0o755)
    with (packages / "tool-1.0.dist-info" / "RECORD").open("a") as record:
        record.write("linked.pth,,\n../../../bin/tool,,\n")
    mixed = Environments(describe(str(old)), describe(str(new))).mix(frozenset(), tmp_path / "mixed")

    said = subprocess.run([mixed.with_name("tool")], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(tmp_path / "mixed"), "7"]


def _state(folder):
    """Everything in an environment: the content of files, where links lead."""
    paths = sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {
        path: (oct(path.lstat().st_mode), path.readlink() if path.is_symlink() else path.read_bytes())
        for path in paths
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("shared", [True, False], ids=["in-kernel", "read-and-written"])
@pytest.mark.parametrize("chosen", [(), ("fasttool",), ("fasttool2",), ("fasttool", "fasttool2")])
def test_nothing_of_the_two_environments_is_written_through_a_mixture(tmp_path, monkeypatch, chosen, shared):
    if not shared:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    old, new = environment(tmp_path / "old", bare=True), environment(tmp_path / "new", bare=True)
    for python, name, tool in ((old, "fasttool", b"\x7fELF"), (new, "fasttool2", f"#!{new}\n".encode())):
        root = python.parent.parent
        (packages,) = root.glob("lib/python*/site-packages")
        install(packages, name, "1.0", "import pathlib\npathlib.Path(__file__).with_name('data.txt').write_text('2')")
        (packages / "data.txt").write_text("1")
        (root / "bin" / "tool").write_bytes(tool)
        with (packages / f"{name}-1.0.dist-info" / "RECORD").open("a") as record:
            # The interpreter is a link to one that belongs to nobody's environment.
            record.write("data.txt,,\n../../../bin/tool,,\n../../../bin/python,,\n")
    before = _state(tmp_path / "old"), _state(tmp_path / "new"), old.resolve().stat().st_mtime_ns
    mixed = Environments(describe(str(old)), describe(str(new))).mix(frozenset(chosen), tmp_path / "mixed")
    # Packages write into their own files, in place.
    for path in (tmp_path / "mixed").rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert path.stat().st_nlink == 1
            with path.open("r+b") as file:
                file.write(b"#")
    assert (_state(tmp_path / "old"), _state(tmp_path / "new"), old.resolve().stat().st_mtime_ns) == before
    tools = {(): b"#", ("fasttool",): None, ("fasttool2",): b"#", ("fasttool", "fasttool2"): b"#"}[chosen]
    tool = tmp_path / "mixed" / "bin" / "tool"
    assert (tool.read_bytes()[:1] if tool.exists() else None) == tools
    # Where both have the file, that of the new environment stays.
    if "fasttool2" in chosen:
        assert tool.read_bytes() == b"#" + f"!{mixed}\n".encode()


def test_a_distribution_without_a_list_of_files_is_installed_or_says_why_not(tmp_path):
    old, new = environment(tmp_path / "old", bare=True, odd=("1.0", "")), environment(tmp_path / "new", bare=True)
    next((tmp_path / "old").glob("lib/python*/site-packages/odd-1.0.dist-info/RECORD")).unlink()

    with pytest.raises(CheckoutError, match=r"^odd in .*/old has no RECORD, and installing odd==1.0 failed: .*pip"):
        Environments(describe(str(old)), describe(str(new))).mix(frozenset(), tmp_path / "mixed")


def test_a_patch_version_of_python_is_a_difference_and_a_minor_version_is_refused(environments):
    import dataclasses

    def of(python):
        return Environments(dataclasses.replace(environments.old, python=python), environments.new)

    major, minor, patch = environments.new.python.split(".")
    other = f"{major}.{minor}.{int(patch.rstrip('+abcr')) + 1}"
    assert of(other).differing()[PYTHON] == (other, environments.new.python)
    with pytest.raises(CheckoutError, match=r"cannot be mixed across minor versions of Python\. Compare both as they"):
        of(f"{major}.{int(minor) + 1}.0").differing()


def test_owners_of_files_by_their_weight(environments):
    files = {"lib/python3/site-packages/nothing.py": 9.0, "fast.py": 2.0, "same_version.py": 5.0}

    assert owners(environments.new, files) == ["same-version", "fast"]
    (packages,) = environments.new.packages
    assert owners(environments.new, {f"{packages}/fast.py": 1.0}) == ["fast"]


@pytest.mark.long
def test_complaints_are_what_pip_finds(tmp_path):
    pytest.importorskip("pip")
    python = environment(tmp_path / "old")
    before = complaints(str(python))
    (packages,) = (tmp_path / "old").glob("lib/python*/site-packages")
    install(packages, "needy", "1.0", "", requires=["absent-one>=2"])

    assert complaints(str(python)) - before == {"needy 1.0 requires absent-one, which is not installed."}
    assert complaints(str(environment(tmp_path / "bare", bare=True))) == set()


@pytest.mark.long
def test_an_environment_may_see_the_python_below(tmp_path):
    venv.create(tmp_path / "old", symlinks=True, system_site_packages=True)
    old, new = describe(str(tmp_path / "old")), describe(str(environment(tmp_path / "new", bare=True)))
    mixed = Environments(old, new).mix(frozenset(), tmp_path / "mixed")

    assert not differences(old, describe(str(mixed)))
