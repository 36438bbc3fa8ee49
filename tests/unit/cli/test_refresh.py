"""`perfdl refresh`: run files in, baselines out, and a command for everything that it refuses."""

import json
import shlex
from dataclasses import replace

import pytest

from pytest_perfdl import cli
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.results.run_file import dump, to_json
from pytest_perfdl.system.git import git
from unit.report import runs as made
from unit.runs.refresh.nights import NEW, OLD, STORED, TEST, UPGRADED, night
from unit.test_schemas import check

SLUG = STORED.key.slug


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A project with one baseline, which is the working directory."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path / "project")
    found = Store(tmp_path / "project", "baselines")
    found.save(STORED, {})
    return found


def written(store, *nights):
    """Run files of these nights, against the baseline that is stored now."""
    paths = []
    for each in nights:
        stored = store.load(TEST, SLUG)
        result = replace(each.result, base=stored)
        path = store.root / each.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(dump(to_json(made.run(result, date=each.date))))
        paths.append(str(path.relative_to(store.root)))
    return paths


def decided(*words, capsys):
    """The exit code and the output of `--json`, which fits its schema."""
    code = cli.main(["refresh", *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    check("refresh", found)
    return code, found


def test_an_improvement_becomes_the_baseline_with_its_note(store, capsys):
    paths = written(store, night(1, -0.1), night(2, -0.1))
    code, found = decided(*paths, "--note", "fused optimizer", capsys=capsys)

    (adopted,) = found["adopted"]
    assert (code, found["refused"], found["unchanged"]) == (0, [], [])
    assert (adopted["id"], adopted["machine"], adopted["change"]) == (TEST, SLUG, "improvement")
    assert adopted["file"] == f"baselines/{SLUG}/tests/perf/test_gpt/test_step.json"
    assert adopted["effect"] == pytest.approx(-0.1, abs=0.01)
    now = store.load(TEST, SLUG)
    assert (now.code, now.note, now.refreshed.date) == (NEW, "fused optimizer", STORED.occasions[0].date)

    assert cli.main(["show", "test_step"]) == 0
    shown = capsys.readouterr().out
    assert "note        fused optimizer" in shown
    assert "written by perfdl refresh" in shown
    assert cli.main(["list"]) == 0
    assert "fused optimizer" in capsys.readouterr().out


def test_the_same_runs_again_change_nothing(store, capsys):
    paths = written(store, night(1, -0.1), night(2, -0.1))
    decided(*paths, capsys=capsys)
    before = store.path(TEST, SLUG).read_bytes()
    code, found = decided(*paths, capsys=capsys)

    assert (code, found["adopted"], found["refused"]) == (0, [], [])
    assert "not compared with the baseline that is stored now" in found["unchanged"][0]["why"]
    assert store.path(TEST, SLUG).read_bytes() == before


def test_a_dry_run_writes_nothing(store, capsys):
    paths = written(store, night(1, -0.1), night(2, -0.1))
    before = store.path(TEST, SLUG).read_bytes()

    assert cli.main(["refresh", *paths, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"adopted    {TEST}  baselines/{SLUG}/")
    assert said.endswith("1 baseline: 1 adopted, 0 refused, 0 unchanged; nothing was written (--dry-run)\n")
    assert store.path(TEST, SLUG).read_bytes() == before


def test_what_is_refused_comes_with_the_command_that_accepts_it(store, capsys):
    paths = written(store, night(1, 0.08))
    code, found = decided(*paths, capsys=capsys)
    (refused,) = found["refused"]

    assert code == 0
    assert (refused["id"], refused["effect"]) == (TEST, pytest.approx(0.08))
    assert "regressed" in refused["why"]
    assert store.load(TEST, SLUG).code == OLD
    program, *words = shlex.split(refused["command"])
    assert (program, cli.main(words)) == ("perfdl", 0)
    now = store.load(TEST, SLUG)
    assert (now.code.files, now.note, now.refreshed) == (NEW.files, "the reason", None)

    assert cli.main(["refresh", *paths]) == 0
    capsys.readouterr()
    assert cli.main(["refresh", *written(store, night(2, 0.05, code=OLD)), "--dry-run"]) == 0
    assert f"to accept: perfdl accept night-2/run.json --test {TEST} --note 'the reason'\n" in capsys.readouterr().out


def test_another_environment_keeps_the_code(store, capsys):
    (path,) = written(store, night(1, 0.02, context=UPGRADED))
    _, found = decided(path, capsys=capsys)

    assert [each["change"] for each in found["adopted"]] == ["environment"]
    now = store.load(TEST, SLUG)
    assert (now.code.files, now.context) == (OLD.files, UPGRADED)
    # The next night is compared with the same code as before.
    _, found = decided(*written(store, night(2, 0.04, context=UPGRADED)), capsys=capsys)
    assert [each["effect"] for each in found["refused"]] == [pytest.approx(0.04)]


def test_code_that_was_not_committed_is_refused(store, capsys):
    git(store.root, "init", "--quiet")
    _, found = decided(*written(store, night(1, -0.1), night(2, -0.1)), capsys=capsys)

    assert "this clone does not have the commit of the run (3f2c1ab3f)" in found["refused"][0]["why"]


def test_a_folder_is_its_run_file_and_tests_are_chosen(store, capsys):
    written(store, night(1, 0.08))

    assert cli.main(["refresh", "night-1"]) == 0
    assert "1 refused" in capsys.readouterr().out
    assert cli.main(["refresh", "night-1", "-k", "other"]) == 3
    assert capsys.readouterr().out == "nothing to refresh: the runs have no perf test\n"


def test_a_newer_baseline_is_not_replaced(store, capsys, monkeypatch):
    paths = written(store, night(1, -0.1), night(2, -0.1))
    newer = replace(STORED, note="meanwhile")
    monkeypatch.setattr("pytest_perfdl.cli.refresh._traces", lambda _: store.save(newer, {}) and {})

    assert cli.main(["refresh", *paths]) == 2
    assert "was replaced while the runs were read" in capsys.readouterr().err
    assert store.load(TEST, SLUG).note == "meanwhile"


BAD = {
    "absent": (["nothing.json"], "nothing.json cannot be read: No such file or directory"),
    "empty-note": (["run.json", "--note", " "], "--note: the note is empty"),
    "long-note": (["run.json", "--note", "a" * 501], "--note: the note has 501 characters, more than 500"),
    "two-lines": (["run.json", "--note", "a\nb"], "--note: the note has line breaks"),
}


@pytest.mark.parametrize("words, says", BAD.values(), ids=BAD)
def test_bad_input_is_one_line(store, capsys, words, says):
    assert cli.main(["refresh", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_accept_names_a_test_that_was_not_measured(store, capsys):
    (path,) = written(store, night(1, 0.08))

    assert cli.main(["accept", path, "--test", "tests/perf/test_gpt.py::test_ste"]) == 2
    assert "the run did not measure 'tests/perf/test_gpt.py::test_ste'" in capsys.readouterr().err
