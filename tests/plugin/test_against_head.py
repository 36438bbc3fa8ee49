"""The working tree's tests are put into the checkout, and nothing else is touched; killed runs leave nothing."""

from __future__ import annotations

import json
import os

import pytest
from plugin.project import SHORT, Project, alive, commit, git, make_repository, until

HEAD = ("--perf-against=HEAD",)
OWN = ("--perf-against=HEAD", "-o", "perf_against_tests=own")
TEST = "import pytest\n\n@pytest.mark.perf\ndef test_step(perf):\n    perf(int)\n"
CHANGED = TEST.replace("int", "float")
STOP = """
    import json, os, sys
    from pathlib import Path
    import pytest

    if "PREFIX" in os.environ:
        sys.prefix = sys.base_prefix = os.environ["PREFIX"]

    def pytest_collection_finish(session):
        (root,) = Path(os.environ["REPOSITORY"], ".git/perfdl").glob("*/project")
        found = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}
        Path(__file__).with_name("checkout.json").write_text(json.dumps(found))
        pytest.exit("checked out", 30)
"""
"""A plugin that ends the run before anything is measured, and tells what is in the checkout."""


class Repository(Project):
    """A project under git, and a plugin beside it that ends the run once the checkout is there."""

    def __init__(self, root, *options):
        super().__init__(root, *options)
        make_repository(root)
        self.write(".gitignore", "perf-report/\n.pytest_cache/\n__pycache__/\noutput-*\nrun.json\n")
        self.beside = root.parent
        (self.beside / "plugins").mkdir()
        self.write("../plugins/stop.py", STOP)

    def commit(self):
        commit(self, "one")

    def checked_out(self, *arguments, **env):
        """What a run has put into the checkout; and that nothing else was changed."""
        before = self._state()
        plugins = self.beside / "plugins"
        path = os.pathsep.join(filter(None, (str(plugins), os.environ.get("PYTHONPATH"))))
        done = self.run(*arguments, plugins=["stop"], PYTHONPATH=path, REPOSITORY=str(self.root), **env)
        assert self._state() == before
        assert done.code == 30, done.output
        return json.loads((plugins / "checkout.json").read_text())

    def _state(self):
        files = (path for path in self.beside.rglob("*") if path.is_file())
        left_out = (".git", "__pycache__", ".pytest_cache", "perf-report", "plugins")
        kept = (path for path in files if not {*left_out} & {*path.parts} and not path.name.startswith("output-"))
        return {str(path): path.read_text() for path in kept}


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "project")


def with_work(repository, folder):
    """Work in a folder of tests that is not committed."""
    repository.write(f"{folder}/test_step.py", CHANGED)
    repository.write(f"{folder}/notes.py", "# of the user\n")


@pytest.mark.long
def test_tests_named_through_a_link(repository):
    repository.write("tests/test_step.py", TEST)
    repository.commit()
    with_work(repository, "tests")
    (repository.beside / "link").symlink_to(repository.root)
    found = repository.checked_out(*HEAD, repository.beside / "link/tests")
    assert found == {"tests/test_step.py": CHANGED}


@pytest.mark.long
def test_tests_outside_the_repository(repository):
    repository.write("demo.py", "")
    repository.commit()
    with_work(repository, "../perftests")
    assert repository.checked_out(*HEAD, "--rootdir=.", "-c", "pytest.ini", "../perftests") == {"demo.py": ""}


@pytest.mark.long
def test_a_repository_below_the_prefix_of_python(repository):
    repository.write("tests/test_step.py", TEST)
    repository.commit()
    with_work(repository, "tests")
    found = repository.checked_out(*HEAD, PREFIX=str(repository.root))
    assert found == {"tests/test_step.py": CHANGED}


@pytest.mark.long
def test_a_folder_of_tests_that_is_a_link_within_the_repository(repository):
    repository.write("perf/test_step.py", TEST)
    (repository.root / "tests").symlink_to("perf")
    repository.commit()
    with_work(repository, "perf")
    assert repository.checked_out(*HEAD, "tests") == {"perf/test_step.py": CHANGED}


@pytest.mark.long
def test_a_folder_of_tests_that_is_a_link_out_of_the_repository(repository):
    with_work(repository, "../shared")
    repository.write("demo.py", "")
    (repository.root / "tests").symlink_to(repository.beside / "shared")
    repository.commit()
    assert repository.checked_out(*HEAD, "tests") == {"demo.py": ""}


@pytest.mark.long
def test_the_second_run_sets_nothing_up_and_what_was_laid_over_is_gone(repository):
    repository.write("tests/test_step.py", TEST)
    repository.commit()
    with_work(repository, "tests")
    setup = f"perf_against_setup=echo . >> {repository.beside}/output-times; echo '1' > built.py"
    for arguments in (HEAD, OWN, HEAD):
        found = repository.checked_out(*arguments, "-o", setup)
        changed = CHANGED if arguments == HEAD else TEST
        assert found == {"tests/test_step.py": changed, "built.py": "1\n"}
    assert (repository.beside / "output-times").read_text() == ".\n"


@pytest.mark.long
def test_tests_that_are_the_same_run_as_the_commit_has_them(repository):
    """Beside a test that is defined otherwise, in a checkout of its own; a conftest file that is gone has no effect."""
    repository.write("tests/test_step.py", TEST)
    repository.write("other/test_same.py", TEST)
    repository.write("other/conftest.py", "import pytest\n\n@pytest.fixture(autouse=True)\ndef slow(): print()\n")
    repository.write("other/test_less.py", TEST)
    repository.commit()
    with_work(repository, "tests")
    repository.write("other/test_same.py", TEST + "# not committed\n")
    assert repository.checked_out(*HEAD, "other")["other/test_same.py"] == TEST
    (repository.root / "other/conftest.py").unlink()
    found = repository.checked_out(*HEAD, "other")
    assert found["other/conftest.py"] == ""
    assert found["other/test_same.py"] == TEST + "# not committed\n"


@pytest.mark.long
def test_a_run_that_is_killed_during_the_setup_leaves_no_process_and_the_next_start_no_checkout(repository):
    repository.write("tests/test_step.py", TEST)
    repository.commit()
    worktrees = git(repository.root, "worktree", "list")
    # Its note lies in the working tree, three folders above the checkout's `.git/perfdl/...`.
    setup = "trap '' TERM; sleep 600 & echo $$ $! > ../../../../output-pids; wait"
    running = repository.start("--perf-against=HEAD", "-o", f"perf_against_setup={setup}")
    pids = repository.note("output-pids")
    running.process.kill()
    running.process.wait()
    until(lambda: not any(map(alive, pids)))
    assert git(repository.root, "worktree", "list") != worktrees
    assert repository.run("--perf", "-k", "none_of_that_name").code == 5
    assert git(repository.root, "worktree", "list") == worktrees
    assert not (repository.root / ".git/perfdl").exists()


CODE = "def work():\n    import torch\n\n    return sum(torch.ones(3).sum() for _ in range({count}))\n"
SPEED = """
import pytest
from demo import work

@pytest.mark.perf(limits={"ops": 0, "step_time": "off", "block_time": "off"})
def test_work(perf, times):
    perf(lambda: [work() for _ in range(times)])
"""
TIMES = "import pytest\n\n@pytest.fixture\ndef times():\n    return 1\n"


@pytest.mark.long
@pytest.mark.parametrize("whose", ["head", "own"])
def test_the_first_tests_of_a_project_beside_its_code(tmp_path, whose):
    """The other revision has no ini file, and with `head` no tests and no conftest file either."""
    made = Repository(tmp_path / "project")
    (made.root / "pytest.ini").unlink()
    made.write("demo.py", CODE.format(count=1))
    if whose == "own":
        made.write("perf/test_demo.py", SPEED)
        made.write("conftest.py", TIMES)
    made.commit()
    made.ini("pythonpath = .", "perf_budget = 1")
    made.write("demo.py", CODE.format(count=20))
    made.write("perf/test_demo.py" if whose == "own" else "test_demo.py", SPEED)
    made.write("conftest.py", TIMES)
    done = made.run(*SHORT, "--perf-json=run.json", "--perf-against=HEAD", "-o", f"perf_against_tests={whose}")
    (test,) = json.loads((made.root / "run.json").read_text())["tests"]
    assert test["verdict"] == "regressed", done.output
    assert test["metrics"]["ops"]["base"] * 10 < test["metrics"]["ops"]["new"]
