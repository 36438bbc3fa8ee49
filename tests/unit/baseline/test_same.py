"""What makes a test's code or environment another than its baseline's."""

from __future__ import annotations

import importlib.metadata
import subprocess
from dataclasses import replace

import pytest
from making import CONTEXT, record, timed

from pytest_perfdl.baseline.code import measured_code
from pytest_perfdl.baseline.recorded_commit import difference

USED = ("conftest.py", "src/code.py", "tests/test_it.py", "data.bin")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").mkdir()
    for name in USED:
        (tmp_path / name).write_text(f"{name}\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture
def base(root):
    made = record({"step_time": timed(1.0)})
    code = measured_code(root, USED, ["numpy"]).code
    return replace(made, code=code, plan=replace(made.plan, period=2, profiled=8))


def told(base, root, **changes):
    now = {"test_hash": base.test_hash, "plan": replace(base.plan, steps=7, period=1), "context": dict(CONTEXT)}
    return difference(base, root, root / "tests/test_it.py", **{**now, **changes})


def test_the_same(base, root):
    assert told(base, root) == ""
    # What the test does not use does not matter, nor how many steps are taken.
    (root / "tests/test_other.py").write_text("")
    (root / "src/conftest.py").write_text("")
    assert told(base, root, plan=replace(base.plan, warmup=1, steps=1)) == ""


def test_a_file_that_changed_or_is_gone(base, root):
    (root / "src/code.py").write_text("other\n")
    assert told(base, root) == "files changed (src/code.py)"
    (root / "src/code.py").write_text("src/code.py\n")
    (root / "data.bin").unlink()
    assert told(base, root) == "files changed (data.bin)"


def test_a_conftest_file_that_was_added(base, root):
    (root / "tests/conftest.py").write_text("")
    assert told(base, root) == "files were added (tests/conftest.py)"


def test_the_test_and_its_setting(base, root):
    assert told(base, root, test_hash="other") == "the test changed"
    assert told(base, root, plan=replace(base.plan, threads=2)) == "threads or seed changed"
    assert told(base, root, plan=replace(base.plan, seed=2)) == "threads or seed changed"


@pytest.mark.parametrize("context", [{"torch": "9"}, {"cuda": "12.4"}, {"driver": "550"}])
def test_the_environment(base, root, context):
    assert told(base, root, context=CONTEXT | context) == f"the environment changed ({next(iter(context))})"


def test_a_package(base, root, monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99" if name == "numpy" else real(name))
    assert told(base, root) == "packages changed (numpy)"


def test_what_cannot_be_known(base, root):
    assert told(replace(base, code=None), root) == "the baseline does not contain hashes of the recorded code"
    ignoring = replace(base, code=replace(base.code, ignored=("build/_C.so",)))
    assert told(ignoring, root) == "the test used files without a hash in the baseline (build/_C.so)"
    for more in (replace(base.code, left_out=1), replace(base.code, files={})):
        assert told(replace(base, code=more), root) == "the test used files without a hash in the baseline"
