"""`perfdl bisect`: wrong input is refused in one line, before anything is measured."""

import json
import subprocess

import pytest

from pytest_perfdl.cli import main
from pytest_perfdl.runs.bisect import child
from pytest_perfdl.runs.bisect.measurements import Measurement

TEST = "tests/test_speed.py::test_step"


def git(root, *words):
    identity = ("-c", "user.name=Author", "-c", "user.email=author@example.org")
    done = subprocess.run(["git", *identity, *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Six commits, the last of which has the test."""
    root = tmp_path / "repository"
    (root / "tests").mkdir(parents=True)
    git(root, "init", "--quiet")
    (root / "pytest.ini").write_text("[pytest]\n")
    for number in range(6):
        (root / "model.py").write_text(f"version = {number}\n")
        if number == 5:
            (root / "tests" / "test_speed.py").write_text("def test_step(perf): ...\n")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", f"commit {number}")
    monkeypatch.chdir(root)
    monkeypatch.setenv("COLUMNS", "100")
    return root


@pytest.fixture
def counted(repository, monkeypatch):
    """Commits whose counts are made up: commit 3 has two operators more, commit 2 does not import."""
    hashes = git(repository, "log", "--format=%H", "--reverse").split()
    ops = dict(zip(hashes, (16.0, 16.0, 16.0, 18.0, 18.0, 18.0), strict=True))
    asked = []

    def measure(self, request, metric, limit):
        asked.append(request)
        if request.commit == hashes[1]:
            return Measurement(request, "ImportError: no", seconds=1.0)
        base = {} if request.against is None else {"ops": ops[request.against]}
        rounds = {"step_time": tuple((100.0, 103.0 + each) for each in range(3))} if request.timed else {}
        return Measurement(request, "", {"ops": ops[request.commit]}, base, rounds, seconds=2.0, key="machine")

    monkeypatch.setattr(child.Child, "measure", measure)
    return hashes, asked


@pytest.mark.parametrize(
    "words, said",
    [
        ((), "expected GOOD [BAD] TEST, got nothing"),
        (("HEAD",), "expected GOOD [BAD] TEST, got HEAD"),
        (("a", "b", "c", "d"), "expected GOOD [BAD] TEST, got a b c d"),
        (("nothing", TEST), "no git revision 'nothing'"),
        (("--", "--all", TEST), "'--all' begins with a dash, so it is no git revision: name GOOD [BAD] TEST"),
        (("--all", "HEAD", TEST), "unrecognized arguments: --all"),
        (("HEAD", "HEAD~1", TEST), "name the older commit first (GOOD BAD TEST)"),
        (("HEAD", TEST), "the working tree has no changes: both ends are the same commit"),
        (("HEAD~1", "tests/absent.py"), "there is no tests/absent.py in"),
        (("HEAD~1", "/elsewhere/test_speed.py"), "is no test of this repository"),
        (("HEAD~1", "HEAD", TEST, "--tests", "nothing"), "--tests: no git revision 'nothing'"),
        (("HEAD~1", "HEAD", TEST, "--metric", "speed"), "--metric: 'speed' cannot be searched by"),
        (("HEAD~1", "HEAD", TEST, "--limit", "0"), "'0' is not a percentage above 0, such as 1.5"),
        (("HEAD~1", "HEAD", TEST, "--budget", "x"), "'x' is not a number of seconds above 0"),
        (("HEAD~1", "HEAD", TEST, "--out", "absent/page.html"), "--out: no folder absent: create it first"),
        (("HEAD~1", "HEAD", TEST, "--", "--perf-json=x"), "--perf-json=x cannot be used with bisect: remove it"),
    ],
)
def test_wrong_input(repository, capsys, words, said):
    try:
        code = main(["bisect", *words])
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert git(repository, "worktree", "list").count("\n") == 0


def test_no_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bisect", "HEAD~1", TEST]) == 2
    assert "is in no git repository: run perfdl bisect in the project\n" in capsys.readouterr().err


def test_the_result_as_text_and_the_search_that_goes_on(counted, repository, capsys):
    hashes, asked = counted
    assert main(["bisect", "HEAD~5", "HEAD", TEST]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"found: {hashes[3][:9]} commit 3\n")
    assert "ops  16 -> 18  +12.5%" in out
    assert f"measure again  perfdl bisect --tests {hashes[5]} {hashes[2]} {hashes[3]} {TEST}" in out
    assert "counting" in err
    number = len(asked)
    assert main(["bisect", "HEAD~5", "HEAD", TEST]) == 0
    assert len(asked) == number, "everything is in the log"
    assert capsys.readouterr().out == out
    assert git(repository, "status", "--porcelain") == ""


def test_a_search_does_not_go_on_in_another_environment(counted, monkeypatch, tmp_path, capsys):
    _, asked = counted
    assert main(["bisect", "HEAD~5", "HEAD", TEST]) == 0
    number = len(asked)
    (tmp_path / "packages" / "torch-9.9.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    assert main(["bisect", "HEAD~5", "HEAD", TEST]) == 0
    assert len(asked) == 2 * number


def test_the_contract_of_the_json(counted, capsys):
    hashes, _ = counted
    assert main(["bisect", "HEAD~5", "HEAD", TEST, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "found"
    assert found["culprit"] == found["candidates"][0] == hashes[3]
    assert found["effect"] == found["interval"][0] == found["interval"][1] == 0.125
    assert found["measured_commits"] == len(found["measured"])
    assert found["time"]["effect"] == pytest.approx(0.04, abs=0.01)


def test_uncommitted_changes_are_told(counted, repository, capsys):
    (repository / "model.py").write_text("version = 6\n")
    assert main(["bisect", "HEAD~5", "HEAD", TEST]) == 0
    assert "uncommitted changes are not measured: leave out HEAD" in capsys.readouterr().err


def test_the_log_of_another_search_is_refused(counted, repository, tmp_path, capsys):
    log = str(tmp_path / "log.jsonl")
    assert main(["bisect", "HEAD~5", "HEAD", TEST, "--log", log]) == 0
    capsys.readouterr()
    assert main(["bisect", "HEAD~4", "HEAD", TEST, "--log", log]) == 2
    assert "line 1 begins the log of another search (good differ): use another --log" in capsys.readouterr().err


def test_ctrl_c(counted, monkeypatch, capsys):
    def interrupted(self, request, metric, limit):
        raise KeyboardInterrupt

    monkeypatch.setattr(child.Child, "measure", interrupted)
    assert main(["bisect", "HEAD~5", "HEAD", TEST]) == 130
    assert "interrupted: the same command goes on from .git/perfdl/bisect-" in capsys.readouterr().err
