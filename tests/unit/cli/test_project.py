"""Commands look for baselines where `pytest --perf` keeps them, whichever ini file says so and from any folder."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from making import record

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.cli import main
from pytest_perfdl.cli.project import find_project
from pytest_perfdl.plugin import SETTINGS
from pytest_perfdl.report import write_all
from unit.report import runs

TEST = "tests/test_speed.py::test_step"
TABLE = "[tool.pytest.ini_options]\nperf_dir = 'records'\n"
FORMS = {
    "pytest.ini": ("pytest.ini", "[pytest]\nperf_dir = records\n"),
    "hidden": (".pytest.ini", "[pytest]\nperf_dir = records\n"),
    "pyproject": ("pyproject.toml", TABLE),
    "tox": ("tox.ini", "[pytest]\nperf_dir = records\n"),
    "setup.cfg": ("setup.cfg", "[tool:pytest]\nperf_dir = records\n"),
    "addopts": ("pytest.ini", "[pytest]\naddopts = -q --perf-dir=records -m 'not slow'\n"),
    "addopts before ini": ("pytest.ini", "[pytest]\naddopts = --perf-dir records\nperf_dir = others\n"),
    "addopts in toml": ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = ['-q', '--perf-dir', 'records']\n"),
    "not ours": ("setup.cfg", "[metadata]\nname = x\n"),
}


@pytest.fixture
def inner(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p perfdl")
    pytester.mkdir("tests")
    return pytester


@pytest.mark.long
@pytest.mark.parametrize("below", [".", "tests"])
@pytest.mark.parametrize("form", FORMS)
def test_the_folder_is_that_of_pytest(form, below, inner, monkeypatch):
    name, text = FORMS[form]
    Path(name).write_text(text)
    monkeypatch.chdir(inner.path / below)
    config = inner.parseconfigure()
    found = find_project()
    assert (found.root, found.ini) == (config.rootpath, config.inipath)
    assert found.folder == config.stash[SETTINGS].folder
    assert found.folder == ("baselines" if form == "not ours" else "records")


@pytest.mark.long
def test_the_environment_has_the_last_word(inner, monkeypatch):
    Path("pytest.ini").write_text("[pytest]\naddopts = --perf-dir=records\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p perfdl --perf-dir=mine")
    assert find_project().folder == inner.parseconfigure().stash[SETTINGS].folder == "mine"


@pytest.fixture
def stored(inner):
    """A project whose ini file names another folder, with one baseline in it."""
    Path("pytest.ini").write_text("[pytest]\nperf_dir = some/records\n")
    made = record(test=TEST)
    Store(inner.path, "some/records").save(made, {})
    return made


@pytest.mark.parametrize("below", [".", "tests"])
@pytest.mark.parametrize("arguments", [["list"], ["show", "test_step"]])
def test_baselines_are_read_there(arguments, below, stored, inner, monkeypatch, capsys):
    monkeypatch.chdir(inner.path / below)
    assert main(arguments) == 0
    assert TEST in capsys.readouterr().out


def test_another_folder_is_one_below_the_working_directory(stored, inner, monkeypatch, capsys):
    monkeypatch.chdir(inner.path / "tests")
    assert main(["list", "--dir", "../some/records"]) == 0
    assert main(["list", "--dir", "baselines"]) == 2
    assert "there is no baselines folder baselines: " in capsys.readouterr().err


@pytest.mark.parametrize("below", [".", "tests"])
def test_baselines_are_accepted_there(below, stored, inner, monkeypatch, capsys):
    result = replace(runs.result("regressed", TEST), new=stored)
    report = write_all(runs.run(result, report_dir=inner.path / "report", root=inner.path))
    shutil.rmtree(inner.path / "some")
    monkeypatch.chdir(inner.path / below)
    assert main(["accept", str(report.json)]) == 0
    printed = capsys.readouterr().out
    path = Store(inner.path, "some/records").path(TEST, stored.key.slug)
    assert path.is_file()
    assert str(path.relative_to(inner.path)) in printed
    assert "only 1 process recorded" in printed


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("pyproject.toml", "[tool.pytest.ini_options\n", "perfdl list: pytest's ini file is invalid: "),
        ("pytest.ini", "perf_dir = x\n", "perfdl list: pytest's ini file is invalid: "),
        ("pytest.ini", "[pytest]\nperf_dir = s3://a/b\n", "perfdl list: perf_dir: s3://a/b is a URL: name a file or"),
        (
            "pytest.ini",
            "[pytest]\naddopts = --perf-dir=s3://a\n",
            "perfdl list: perf_dir: s3://a is a URL: name a file",
        ),
        ("pytest.ini", "[pytest]\naddopts = -k 'open\n", "perfdl list: addopts in the ini file or PYTEST_ADDOPTS is "),
    ],
)
def test_an_ini_file_that_cannot_be_read(name, text, said, inner, capsys):
    Path(name).write_text(text)
    assert main(["list"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)
