"""`--perf-against`: another revision measured beside the working tree, and nothing left behind."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from plugin.project import SHORT, Project, commit, git, make_repository

from pytest_perfdl.system.git import FETCH_ALL

pytestmark = pytest.mark.long

PACKAGE = """
def work():
    return sum(range({size}))
"""
TEST = """
import pytest
from demo_package import work

@pytest.mark.perf(limits={"ops": 0})
def test_work(perf):
    assert perf(work) > 0
"""

XFAIL = """
import pytest

def pytest_itemcollected(item):
    item.add_marker(pytest.mark.xfail(reason="known"))
"""


@pytest.fixture
def project(tmp_path):
    """A package with a src layout under git; its first commit does half of the work of the second."""
    made = Project(tmp_path / "project", "pythonpath = src", "perf_budget = 1")
    make_repository(made.root)
    made.write(".gitignore", "perf-report/\n.pytest_cache/\n__pycache__/\noutput-*\nrun.json\n")
    made.write("src/demo_package/__init__.py", PACKAGE.format(size=10_000))
    made.write("tests/test_speed.py", TEST)
    commit(made, "one")
    made.write("src/demo_package/__init__.py", PACKAGE.format(size=20_000))
    commit(made, "two")
    return made


def run(project, *arguments, **options):
    done = project.run(*SHORT, "--perf-json=run.json", *arguments, **options)
    return done, json.loads((project.root / "run.json").read_text())["tests"]


def test_each_side_runs_its_own_code_as_it_was_built(project):
    setup = "pwd > built.txt && sed -i 's/sum(/max(/' src/demo_package/__init__.py"
    # Not committed: the working tree counts as it is on disk.
    project.write("src/demo_package/__init__.py", "import torch\n\ndef work():\n    return torch.ones(3).sum()\n")
    done, (test,) = run(project, "--perf-against=HEAD", "-o", f"perf_against_setup={setup}")
    assert test["metrics"]["ops"]["base"] == 0
    assert test["metrics"]["ops"]["new"] > 0
    assert test["metrics"]["ops"]["verdict"] == test["verdict"] == "regressed"
    assert "paired round" in done.output
    assert re.search(r"^against +HEAD at [0-9a-f]{9}$", done.output, re.MULTILINE)
    assert "accept the change" not in done.output
    assert done.code == 1
    assert not (project.root / "built.txt").exists()
    assert git(project.root, "worktree", "list").count("\n") == 1, "it stays for later runs"
    assert git(project.root, "status", "--porcelain") == "M src/demo_package/__init__.py"


def test_a_test_that_the_other_revision_does_not_have_is_new_and_that_is_said(project):
    project.write("tests/test_more.py", TEST)
    project.write("tests/test_speed.py", TEST + "\n@pytest.mark.perf\ndef test_again(perf):\n    perf(work)\n")
    own = ("-o", "perf_against_tests=own")
    done, tests = run(project, "--perf-against=HEAD", *own, "-k", "more or again")
    assert {test["id"]: test["verdict"] for test in tests} == {
        "tests/test_more.py::test_work": "new",
        "tests/test_speed.py::test_again": "new",
    }
    added = "tests/test_more.py::test_work, tests/test_speed.py::test_again"
    said = f"nothing was compared, because HEAD does not have {added}"
    assert done.line(said)
    assert said in (project.root / "perf-report" / "summary.md").read_text()
    assert done.code == 0
    assert "compared with HEAD" in done.line("perf: on, ")
    summary = done.output.partition("perf summary")[2]
    assert re.search(r"(^|   )against HEAD$", summary, re.MULTILINE)
    assert "repeat" not in summary

    done = project.run(*SHORT, *own, "--perf-against=HEAD", "-k", "more", "--perf-require=1", "-q")
    assert done.code == 1
    required = "0 tests were compared, but --perf-require requires 1 (1 new)"
    assert done.line(f"perf: {required}")
    assert required in (project.root / "perf-report" / "run.json").read_text()
    assert done.line("nothing was compared, because HEAD does not have tests/test_more.py::test_work"), (
        "quiet, but not about this"
    )


def test_without_peaks_on_times_only_counts_are_judged(project):
    off = ("--perf-limit=step_time:off", "--perf-limit=block_time:off")
    done, (test,) = run(project, "--perf-against=HEAD", *off, "--perf-repeats=3")
    assert test["verdict"] == "unchanged", done.output
    assert "paired round" not in done.output
    assert test["record"]["occasions"][0]["repeats"] == 1, "no time is compared with the times of repeats"


def test_a_regression_that_is_expected_fails_nothing(project):
    project.write("src/demo_package/__init__.py", "import torch\n\ndef work():\n    return torch.ones(3).sum()\n")
    project.write("tests/conftest.py", XFAIL)
    off = ("--perf-limit=step_time:off", "--perf-limit=block_time:off")
    done, (test,) = run(project, "--perf-against=HEAD", *off)
    assert done.code == 0, done.output
    assert "1 xfailed" in done.output
    assert (test["verdict"], test["fails"]) == ("regressed", False)


def test_a_test_that_changed_and_cannot_run_on_the_other_code_is_said_to_have_changed(project):
    project.write("src/demo_package/more.py", "from demo_package import work as faster\n")
    project.write("tests/test_speed.py", "from demo_package.more import faster\n" + TEST.replace("work)", "faster)"))
    done, (test,) = run(project, "--perf-against=HEAD")
    assert (test["verdict"], done.code) == ("changed", 0), done.output
    assert test["metrics"] == {}
    assert test["reason"].startswith("the benchmark differs from that of the baseline commit (")
    assert "demo_package.more" in test["reason"]
    assert any("faster" in each["text"] for each in test["definition"])
    assert "the benchmark differs" in done.output


def test_the_heads_tests_may_run_on_the_other_code(project):
    made = "import torch\n\ndef work():\n    return sum(torch.ones(2) for _ in range({size})).sum()\n"
    project.write("src/demo_package/__init__.py", made.format(size=2))
    commit(project, "three")
    project.write("src/demo_package/__init__.py", made.format(size=4))
    project.write("tests/test_speed.py", TEST.replace("perf(work)", "perf(lambda: work())"))
    done, (test,) = run(project, "--perf-against=HEAD")
    assert "paired round" in done.output
    assert test["reason"].startswith("the benchmark differs from that of the baseline commit (test_work in tests/")
    assert "both sides ran the one of the working tree" in done.output
    ops = test["metrics"]["ops"]
    assert 0 < ops["base"] < ops["new"], "half of the work"
    assert test["verdict"] == ops["verdict"] == "regressed"


def test_the_heads_code_on_both_sides_is_caught(project):
    # As a hand-made import path does that names the repository absolutely.
    project.write(
        "conftest.py",
        f"import sys\nsys.path.insert(0, {str(project.root / 'src')!r})\n",
    )
    commit(project, "three")
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=30_000))
    done, (test,) = run(project, "--perf-against=HEAD")
    assert test["verdict"] == "invalid"
    assert "loaded code of the working tree (demo_package)" in test["reason"]
    assert done.code == 1


def test_an_installed_copy_of_the_code_is_caught(project):
    # As after `pip install .`: the working tree has other code, and nobody runs it.
    project.ini("perf_budget = 1")
    commit(project, "three")
    site = project.root.parent / "site-packages"
    shutil.copytree(project.root / "src", site)
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=900_000))
    done, (test,) = run(project, "--perf-against=HEAD", PYTHONPATH=str(site))
    assert test["verdict"] == "invalid"
    assert f"the baseline side imported demo_package from {site}, so both sides run the same code: " in test["reason"]
    assert ("install the package in editable mode (pip install -e .), or set pythonpath = src in the ini file") in test[
        "reason"
    ]
    assert done.code == 1


def test_an_installed_copy_of_code_that_lies_deeper_is_caught(project):
    # As after `pip install ./python`.
    project.ini("perf_budget = 1")
    git(project.root, "mv", "src", "python")
    commit(project, "three")
    site = project.root.parent / "site-packages"
    shutil.copytree(project.root / "python", site)
    project.write("python/demo_package/__init__.py", PACKAGE.format(size=900_000))
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    done, (test,) = run(project, "--perf-against=HEAD", PYTHONPATH=path)
    assert (done.code, test["verdict"]) == (1, "invalid"), done.output
    assert f"side imported demo_package from {site}, so both sides run the same code: " in test["reason"]
    assert test["reason"].endswith("or set pythonpath = python in the ini file")


def test_a_fast_path_that_only_the_working_tree_has_is_caught(project):
    """A compiled module that git ignores, with a fallback in Python; and each side builds extensions for itself."""
    package = """
    import os
    from torch.utils.cpp_extension import _get_build_directory
    with open(os.environ["NOTES"], "a") as notes:
        print(__file__, _get_build_directory("same_name", False), file=notes)
    try:
        from demo_package._fast import work
    except ImportError:
        def work():
            return sum(range({size}))
    """
    project.write("src/demo_package/__init__.py", package.format(size=10_000))
    project.write(".gitignore", (project.root / ".gitignore").read_text() + "_fast.py\n")
    commit(project, "three")
    project.write("src/demo_package/__init__.py", package.format(size=20_000))
    project.write("src/demo_package/_fast.py", "def work():\n    return 1\n")
    path = project.root.parent / "notes.txt"
    done, (test,) = run(project, "--perf-against=HEAD", NOTES=str(path))
    assert (done.code, test["verdict"]) == (1, "invalid"), done.output
    assert test["reason"].startswith(
        "the current side used src/demo_package/_fast.py, which git ignores and the baseline commit's checkout lacks"
    )
    head, base = dict.fromkeys(line.split()[1] for line in path.read_text().splitlines())
    assert str(project.root / ".git/perfdl") in base
    assert str(project.root) not in head


def test_installed_code_is_recorded_and_tied_to_the_tree_that_it_equals(project):
    """As under tox, with the command of our recipe: the package is installed, and its tests run from the checkout."""
    recipe = (Path(__file__).parents[2] / "docs/how-to/tox.md").read_text()
    (command,) = re.findall(r"^commands = pytest (.*) \{posargs\}$", recipe, re.MULTILINE)
    project.ini()
    project.write(".gitignore", "*.log\nperf-report/\n.pytest_cache/\n__pycache__/\noutput-*\n")
    project.write("src/older_package.py", "def work():\n    return 1\n")
    reading = 'open("tests/batches.bin").close(); open("data/weights.log").close()'
    project.write("conftest.py", f"def pytest_runtest_setup():\n    {reading}\n")
    project.write("tests/batches.bin", "data")
    project.write("data/weights.log", "made by a build")
    project.write("tests/test_older.py", TEST.replace("demo_package", "older_package"))
    site = project.root.parent / "site-packages"
    shutil.copytree(project.root / "src", site)
    project.write("src/older_package.py", "def work():\n    return 2\n")
    commit(project, "three")
    done = project.run(*command.split(), "--perf-update", *SHORT, "--perf-repeats=1", PYTHONPATH=str(site))
    assert done.code == 0, done.output
    records = {
        name: json.loads(project.baseline(f"{name}/test_work").read_bytes()) for name in ("test_speed", "test_older")
    }
    used = {"conftest.py", "src/demo_package/__init__.py", "tests/test_speed.py", "tests/batches.bin"}
    assert records["test_speed"]["code"]["files"].keys() == used | {"pytest.ini"}
    assert records["test_speed"]["code"]["ignored"] == ["data/weights.log"]
    assert records["test_speed"]["code"]["packages"]["torch"] == importlib.metadata.version("torch")
    assert "code" not in records["test_older"]
    (told,) = [finding["message"] for finding in records["test_older"]["integrity"] if finding["code"] == "untied"]
    assert told.startswith(f"the test imported older_package from {site}, not the code in this repository")


def test_a_revision_that_a_shallow_clone_lacks(project, tmp_path):
    project.write("added.py", "")
    commit(project, "two")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth=1", project.root.as_uri(), str(clone))
    done = Project(clone, "pythonpath = src").run("--perf-against=HEAD~1")
    assert done.code == 4
    assert f"there is no git revision 'HEAD~1' (the clone is shallow: run {FETCH_ALL})" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--perf-against=nowhere"], "--perf-against: there is no git revision 'nowhere'"),
        (["--perf-against=HEAD", "--perf-update"], "remove --perf-update"),
        (["--perf-against=HEAD", "--perf-isolate=none"], "--perf-against needs fresh processes"),
        (
            ["--perf-against=HEAD", "-o", "perf_against_setup=echo no compiler >&2; exit 3"],
            "perf_against_setup failed with exit code 3: no compiler",
        ),
        (["--perf-against=HEAD", "-o", "perf_against_tests=both"], "ini perf_against_tests = 'both'"),
    ],
    ids=["revision", "update", "in-process", "setup", "tests"],
)
def test_wrong_usage_is_one_line(project, arguments, message):
    done = project.run(*arguments)
    assert done.code == 4
    assert message in done.output
    assert "Traceback" not in done.output
    assert "perf summary" not in done.output
    assert not (project.root / "perf-report").exists()
    assert git(project.root, "worktree", "list").count("\n") == 0


def test_outside_a_repository(tmp_path):
    project = Project(tmp_path / "bare", "pythonpath = src")
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=10))
    project.write("tests/test_speed.py", TEST)
    done = project.run("--perf-against=HEAD")
    assert done.code == 4
    assert "no git revision 'HEAD'" in done.output


def test_a_suspect_is_confirmed_against_the_commit_of_its_baseline(project):
    # The baseline is recorded on the code of "two" and committed with it, as one does.
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=40_000))
    # A file that no test uses is no part of it.
    stray = project.write("notes.txt", "of the user")
    recorded = project.run(*SHORT, "--perf-update", "--perf-repeats=6")
    assert recorded.code == 0, recorded.output
    stray.unlink()
    commit(project, "three, with its baseline")
    # So much slower that it is suspected on a busy machine, too.
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=800_000))
    commit(project, "four")
    _, (test,) = run(project, "--perf")
    step = test["metrics"]["step_time"]
    assert " paired round" in test["reason"]
    assert step["base"] * 2 < step["new"]
    assert step["limit"] == "3%"


def test_a_test_that_the_other_revision_skips_cannot_be_compared(project):
    skipping = TEST.replace("@pytest", "@pytest.mark.skip\n@pytest")
    project.write("tests/test_speed.py", skipping)
    commit(project, "skipped")
    project.write("tests/test_speed.py", TEST)
    done, (test,) = run(project, "--perf-against=HEAD")
    assert (done.code, test["verdict"]) == (0, "incomparable"), done.output
    assert "does not have" not in done.output
    assert test["reason"].startswith("the test is skipped or expected to fail at the baseline commit ")


SET = """
import os
import torch
{line}
def work():
    return [torch.ones(3).sum() for _ in range(5 if os.environ.get("PERFDL_MORE") else 1)]
"""
WORKING = """
import pytest
from demo_package import work

@pytest.mark.perf(limits={"ops": 0})
def test_work(perf):
    assert perf(work)
"""


def test_a_variable_that_only_the_current_code_sets_is_not_set_for_the_baseline(project):
    project.write("src/demo_package/__init__.py", SET.format(line=""))
    project.write("tests/test_speed.py", WORKING)
    commit(project, "three")
    project.write("src/demo_package/__init__.py", SET.format(line="os.environ['PERFDL_MORE'] = '1'"))
    done, (test,) = run(project, "--perf-against=HEAD")
    assert test["metrics"]["ops"]["new"] == 5 * test["metrics"]["ops"]["base"] > 0
    assert test["verdict"] == "regressed", done.output
    assert "set environment variables differently: PERFDL_MORE" in test["rounds"]
