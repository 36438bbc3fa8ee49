"""`perfdl prune` deletes baselines of tests that are gone for certain, which git can bring back, and no others."""

import re
import subprocess
from pathlib import Path

import pytest
from making import record, timed

from pytest_perfdl.baseline.files import Store, exemplar_path
from pytest_perfdl.cli import main
from pytest_perfdl.model.record import Key
from pytest_perfdl.workers.checkout import checked_out

SPEED = """
import pytest

@pytest.mark.perf
def test_step(perf): ...

@pytest.mark.perf
@pytest.mark.parametrize("size", [1, 2])
def test_sizes(perf, size): ...

class TestIt:
    @pytest.mark.perf(scaling={"batch": [4, 8, 16]})
    def test_inner(self, perf, batch): ...
"""
OF_SPEED = (
    "test_step",
    "test_sizes[1]",
    "test_sizes[2]",
    "TestIt::test_inner[batch=4]",
    "TestIt::test_inner[batch=16]",
)
FILE = "tests/test_speed.py"


def git(*arguments):
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit():
    git("add", "--all")
    git("commit", "--quiet", "-m", "all")


def write(name, text):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def stored(*tests, folder="baselines", key="cpu"):
    """Baselines of some tests, the path of each record."""
    store = Store(Path.cwd(), folder)
    for test in tests:
        store.save(record({"block_time": timed(5)}, test=test, key=Key(key, {})), {"": b"\x1f\x8b picture"})
    return [store.path(test, key) for test in tests]


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A repository with tests and their baselines."""
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    git("init", "--quiet")
    git("config", "user.email", "author@example.org")
    git("config", "user.name", "Author")
    write("pytest.ini", "[pytest]\n")
    write(FILE, SPEED)
    write("tests/test_plain.py", "def test_plain(): ...\n")
    write(".gitignore", "__pycache__/\n")
    stored(*(f"{FILE}::{test}" for test in OF_SPEED))
    commit()
    return root


def prune(capsys, *arguments):
    """Exit code, what was printed by its first words, and the baselines that are left."""
    code = main(["prune", *arguments])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    lines = (printed.out + printed.err).splitlines()
    return code, lines


def left():
    return {path.relative_to("baselines/cpu/tests").as_posix() for path in Path("baselines").rglob("*.json")}


@pytest.fixture
def orphan(project):
    """The baseline of a test that is gone."""
    (path,) = stored(f"{FILE}::test_gone")
    commit()
    return path


def test_every_test_is_found(capsys):
    assert prune(capsys, "--apply") == (3, ["nothing to prune: no baseline without a test (checked 5 baselines)"])


@pytest.mark.parametrize(
    "ini",
    [
        "addopts = -q",
        "addopts = -vv -m 'not perf' -k plain --deselect tests/test_speed.py",
        "addopts = --lf --ignore=tests -x",
        "addopts = -p no:perfdl -p no:terminal",
        "addopts = --import-mode=importlib -p no:cacheprovider\nfilterwarnings = error\nperf = true",
    ],
)
def test_options_of_the_project_hide_no_test(ini, orphan, capsys):
    write("pytest.ini", f"[pytest]\n{ini}\n")
    code, lines = prune(capsys, "--apply")
    assert code == 0
    (line,) = lines
    assert line.startswith(f"deleted  {FILE}::test_gone  baselines/cpu/tests/test_speed/test_gone.json")
    assert len(left()) == len(OF_SPEED)


def test_nor_do_those_of_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-qq -m 'not perf' -k plain --ignore=tests")
    assert prune(capsys, "--apply") == (3, ["nothing to prune: no baseline without a test (checked 5 baselines)"])


SKIPS = "import pytest\npytest.importorskip('a_module_that_is_nowhere')\n"


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("pytest.ini", "[pytest]\ntestpaths = others\n", "pytest did not collect tests/test_speed.py"),
        ("pytest.ini", "[pytest]\npython_files = check_*.py\n", "pytest did not collect tests/test_speed.py"),
        ("tests/conftest.py", "collect_ignore = ['test_speed.py']\n", "pytest did not collect tests/test_speed.py"),
        (
            FILE,
            SKIPS + SPEED,
            "pytest did not collect tests/test_speed.py: Skipped: could not import 'a_module_that_is_nowhere'",
        ),
        (
            FILE,
            "import a_module_that_is_nowhere\n" + SPEED,
            "pytest did not collect tests/test_speed.py: ModuleNotFoundError",
        ),
        (FILE, "def (:\n", "pytest did not collect tests/test_speed.py: SyntaxError"),
        (
            FILE,
            "import pytest\npytest.skip('not today', allow_module_level=True)\n",
            "pytest did not collect tests/test_speed.py: Skipped: not today",
        ),
        (
            FILE,
            "if False:\n  class TestIt:\n    def test_inner(): ...\n  def test_step(): ...\n  def test_sizes(): ...\n",
            "pytest did not collect the test, although its file defines it",
        ),
        (
            FILE,
            SPEED.replace("[1, 2]", "[3]").replace("[4, 8, 16]", "[32, 64, 128]"),
            "the test no longer has these parameters (see --params)",
        ),
        ("tests/conftest.py", "import a_module_that_is_nowhere\n", "perfdl prune: pytest could not collect"),
    ],
)
def test_what_was_not_collected_whole_is_kept(name, text, said, capsys):
    write("others/test_other.py", "def test_other(): ...\n")
    write(name, text)
    before = left()
    code, lines = prune(capsys, "--apply")
    assert said in lines[0], lines
    assert code == (2 if said.startswith("perfdl prune") else 3)
    assert left() == before


@pytest.mark.long
def test_a_collection_that_does_not_end_is_ended(capsys, monkeypatch):
    monkeypatch.setattr("pytest_perfdl.cli.prune._SECONDS", 1.0)
    write("tests/conftest.py", "import time\ntime.sleep(600)\n")
    assert prune(capsys, "--apply") == (2, ["perfdl prune: pytest did not collect the tests within 1 s"])


def test_a_class_that_cannot_be_collected_is_kept(capsys):
    write(FILE, SPEED + "\n    @pytest.mark.parametrize('nothing', [1])\n    def test_broken(self): ...\n")
    code, lines = prune(capsys, "--apply")
    assert code == 3
    assert all("pytest did not collect " in line for line in lines[:-1]), lines
    assert len(left()) == len(OF_SPEED)


def test_parameters_that_are_gone_are_deleted_when_asked_for(capsys):
    write(FILE, SPEED.replace("[1, 2]", "[2, 3]"))
    code, lines = prune(capsys, "--apply", "--params")
    assert code == 0
    (line,) = lines
    assert line.startswith(f"deleted  {FILE}::test_sizes[1]  ")
    assert line.endswith("/test_sizes[1].json  (the test has other parameters now)")


@pytest.mark.long
def test_a_test_whose_file_or_function_or_class_is_gone(capsys):
    git("mv", FILE, "tests/test_more.py")
    write("tests/test_more.py", SPEED.replace("test_step", "test_jump").replace("TestIt", "TestThat"))
    stored(*(f"tests/test_more.py::{test}" for test in OF_SPEED))
    commit()
    code, lines = prune(capsys)
    assert code == 0
    assert {line.split()[2]: line.partition("(")[2] for line in lines[:-1]} == {
        **{f"{FILE}::{test}": "the test file does not exist)" for test in OF_SPEED},
        "tests/test_more.py::test_step": "the file has no test with this name)",
        "tests/test_more.py::TestIt::test_inner[batch=4]": "the file has no test with this name)",
        "tests/test_more.py::TestIt::test_inner[batch=16]": "the file has no test with this name)",
    }
    assert lines[-1] == "8 of 10 baselines have no test; run `perfdl prune --apply` to delete these baselines"
    assert len(left()) == 10, "nothing is deleted without --apply"
    assert prune(capsys, "--apply")[0] == 0
    assert left() == {"test_more/test_sizes[1].json", "test_more/test_sizes[2].json"}
    assert git("status", "--porcelain").count(".trace.json.gz") == 8, "their pictures go with them"


@pytest.mark.parametrize("path", ["others/../tests/test_plain.py", "others"])
def test_paths_say_whose_baselines_are_looked_at(path, orphan, capsys):
    write("others/test_other.py", "def test_other(): ...\n")
    assert prune(capsys, path, "--apply") == (3, ["nothing to prune: no baseline without a test (checked 0 baselines)"])


@pytest.mark.parametrize("path", ["tests", f"{FILE}::test_gone"])
def test_paths_that_cover_an_orphan(path, orphan, capsys):
    more = ["--all"] if "::" in path else []
    code, lines = prune(capsys, path, "--apply", *more)
    assert (code, orphan.exists()) == (0, False), lines
    assert len(left()) == len(OF_SPEED)


def test_a_class_covers_its_tests_and_no_other_class(capsys):
    stored(f"{FILE}::TestIt::test_gone", f"{FILE}::TestItToo::test_gone")
    commit()
    code, lines = prune(capsys, f"{FILE}::TestIt")
    assert (code, [line.split()[2] for line in lines[:-1]]) == (0, [f"{FILE}::TestIt::test_gone"])


def test_a_path_that_is_gone(capsys):
    Path(FILE).unlink()
    code, lines = prune(capsys, FILE)
    assert code == 0
    assert len(lines) == len(OF_SPEED) + 1


def test_from_a_folder_below_the_root(orphan, monkeypatch, capsys):
    write("pytest.ini", "[pytest]\nperf_dir = records\n")
    Path("baselines").rename("records")
    commit()
    monkeypatch.chdir("tests")
    code, lines = prune(capsys, "--apply", "test_speed.py")
    assert code == 0
    (line,) = lines
    assert f"  {Path.cwd().parent}/records/cpu/tests/test_speed/test_gone.json  " in line


@pytest.mark.long
def test_every_baseline_at_once_must_be_meant(capsys):
    Path(FILE).unlink()
    code, lines = prune(capsys, "--apply")
    assert (code, len(left())) == (2, 5)
    assert lines == ["perfdl prune: the command would delete all 5 baselines: add --all to confirm"]
    assert prune(capsys, "--apply", "--all")[0] == 0
    assert left() == set()


@pytest.mark.long
@pytest.mark.parametrize("state", ["changed", "new", "staged", "ignored", "picture changed", "no repository"])
def test_what_git_could_not_bring_back_is_not_deleted(state, orphan, capsys):
    picture = exemplar_path(orphan, "")
    if state == "changed":
        orphan.write_text(orphan.read_text() + " ")
    elif state == "picture changed":
        picture.write_bytes(b"other")
    elif state == "no repository":
        Path(".git").rename("git")
    else:
        git("rm", "--quiet", "--cached", str(orphan), str(picture))
        git("commit", "--quiet", "-m", "without")
        if state == "staged":
            git("add", str(orphan), str(picture))
        elif state == "ignored":
            write(".gitignore", "test_gone*\n")
    before = left()
    code, (line,) = prune(capsys, "--apply")
    assert code == 2
    assert line.startswith(
        "perfdl prune: nothing was deleted, because git cannot restore baselines/cpu/tests/test_speed/test_gone."
    )
    assert line.endswith("commit first, or add --force")
    assert left() == before
    assert prune(capsys, "--apply", "--force")[0] == 0
    assert (orphan.exists(), picture.exists()) == (False, False)


def test_a_file_that_a_sparse_checkout_leaves_out(capsys):
    git("update-index", "--skip-worktree", FILE)
    Path(FILE).unlink()
    code, lines = prune(capsys, "--apply", "--all")
    assert code == 3
    assert all("is excluded by git sparse-checkout" in line for line in lines[:-1])
    assert lines[-1] == "nothing to prune: no baseline without a test (checked 5 baselines, 5 of them uncertain)"


def test_kept_checkouts_are_deleted_and_no_baselines(capsys):
    assert prune(capsys, "--checkouts") == (3, ["no checkouts to delete"])
    with checked_out(Path.cwd(), git("rev-parse", "HEAD"), seconds=60):
        assert prune(capsys, "--checkouts") == (3, ["no checkouts to delete"]), "one that is in use stays"
    before = left()
    code, (line,) = prune(capsys, "--checkouts")
    assert code == 0
    assert re.fullmatch(r"1 checkout deleted, [\d.]+ (B|KiB)", line)
    assert not Path(".git/perfdl").exists()
    assert left() == before
    Path(".git").rename("git")
    assert prune(capsys, "--checkouts") == (2, ["perfdl prune: the working directory is not in a git repository"])
