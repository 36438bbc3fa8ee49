"""A project's modules with names of the standard library: never run by what is started, never in its way."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_perfdl.cli.project import Project
from pytest_perfdl.cli.prune import collect
from pytest_perfdl.runs.bisect.mixtures import complaints
from pytest_perfdl.system import import_path
from pytest_perfdl.system.import_path import LIBRARY_FIRST, module_command, own_imports, own_path
from pytest_perfdl.workers.channel import pair
from pytest_perfdl.workers.interpreter import describe
from pytest_perfdl.workers.launcher import _BOOT as RANK_BOOT
from pytest_perfdl.workers.process import boot, environment
from pytest_perfdl.workers.rank_process import ADDRESS

NAMES = sorted(
    name
    for name in sys.stdlib_module_names - {"this", "antigravity"}
    if not name.startswith("_") and importlib.util.find_spec(name) is not None
)
"""Those of this system: on others, the library has more."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with a module of every name in the library that notes that it was run, and fails."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(9)\n"
        )
    (folder / "tests").mkdir()
    (folder / "tests" / "test_a.py").write_text("import own\n\ndef test_a(): assert own.X == 1\n")
    (folder / "own.py").write_text("X = 1\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    yield folder
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_the_modules_would_be_run(project, tmp_path):
    """What `python -m` does, so that the other tests can fail."""
    assert subprocess.run([sys.executable, "-m", "json.tool", "--help"], capture_output=True).returncode == 9
    (tmp_path / "ran").unlink()


@pytest.mark.parametrize("module", ["worker", "fork_server"])
def test_workers_and_fork_servers(project, module):
    ours, theirs = pair()
    stacks = os.open(os.devnull, os.O_RDWR)
    descriptors = (theirs.fileno(), os.getpid(), *([stacks] if module == "worker" else []))
    with theirs, (project.parent / "output").open("wb") as output:
        # As where a conftest file at the top put the folder there.
        process = boot(
            module,
            descriptors,
            [str(project), *own_path()],
            folder=str(project),
            variables=environment(1),
            output=output,
            passing=(theirs.fileno(), stacks),
        )
    os.close(stacks)
    ours.close()
    process.wait(60)
    # The channel's end is what ended it.
    assert (process.returncode, (project.parent / "output").read_text()) in ((0, ""), (1, ""))


def test_ranks(project):
    told = {"own_path": own_path(), "import_path": [str(project)], "address": "/nowhere", "secret": "", "folder": ""}
    variables = {**environment(1), ADDRESS: json.dumps(told), "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run([sys.executable, "-c", RANK_BOOT], env=variables, capture_output=True, text=True)
    assert "No such file or directory" in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_other_interpreters_and_pip(project):
    assert str(project) not in describe(sys.executable).path
    complaints(sys.executable)


@pytest.mark.long
def test_a_pytest_of_our_own_finds_the_projects_packages(project):
    """As `python -m pytest` does, but for modules of the library."""
    done = subprocess.run(
        module_command(sys.executable, "pytest", "-q", "-p", "no:cacheprovider", path=LIBRARY_FIRST),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = collect(Project(project, project / "pytest.ini", "baselines", ()), [])
    assert found.tests == {"tests/test_a.py::test_a"}


def test_processes_that_read_traces(project):
    script = (
        f"import sys; sys.path[:] = {own_path()!r}\n"
        "from pytest_perfdl.cli import trace_processes\n"
        "from multiprocessing import forkserver, resource_tracker\n"
        "context = trace_processes._context()\n"
        "process = context.Process(target=print, args=('read',))\n"
        "process.start()\nprocess.join()\nprint(process.exitcode)\n"
    )
    done = subprocess.run([sys.executable, "-c", LIBRARY_FIRST + script], capture_output=True, text=True, cwd=project)
    assert done.stdout.split() == ["read", "0"], done.stderr


def test_either_side_has_its_own_module_of_a_name(tmp_path, monkeypatch):
    """A project's `statistics` is the project's, before and after we imported the library's; and ours the library's."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("statistics", "colorsys"):
        (tmp_path / f"{name}.py").write_text("OWN = True\n")
        # Put back afterwards, also where nobody has imported it before.
        monkeypatch.setitem(sys.modules, name, sys)
        del sys.modules[name]
    import statistics as first

    with own_imports():
        import colorsys as ours_later
        import statistics as ours
    import colorsys as theirs_later
    import statistics as second

    assert (first.OWN, second is first) == (True, True)
    assert (hasattr(ours, "median"), hasattr(ours_later, "rgb_to_hsv")) == (True, True)
    assert theirs_later.OWN
    assert sys.path[0] == str(tmp_path)


def test_the_library_comes_first_in_our_own_path(monkeypatch):
    library = str(Path(os.__file__).parent)
    monkeypatch.setattr(import_path, "_STARTED_WITH", ("/a", library, "/b", f"{library}/lib-dynload", "/c"))
    assert own_path() == [library, f"{library}/lib-dynload", "/a", "/b", "/c"]
