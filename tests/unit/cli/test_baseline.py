"""`perfdl baseline`: merges in real repositories, names that move, former forms, and what is wrong with files."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from making import COMMIT, counted, record, rows, timed

from pytest_perfdl.baseline.append import append
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.baseline.text import dump, parse
from pytest_perfdl.cli import main
from pytest_perfdl.model.record import Call, Code, Key, Occasion

TEST = "tests/test_speed.py::test_step"
FILE = Path("baselines/cpu/tests/test_speed/test_step.json")
TRACE = Path("baselines/cpu/tests/test_speed/test_step.trace.json.gz")


def measured(day, time, digit="a", test=TEST, key="cpu", **more):
    return record(
        {"step_time": timed(time), "ops": counted(3)},
        rows=rows(mm=(2, time)),
        test=test,
        key=Key(key, {}),
        occasions=(Occasion(1, f"2026-05-{day:02}T10:00:00Z", COMMIT, None, (100 + day,)),),
        code=Code({"src/step.py": digit * 12}),
        **more,
    )


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    Path("pytest.ini").write_text("[pytest]\n")
    return Store(tmp_path, "baselines")


def git(*arguments, code=0):
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def baseline(capsys, *arguments):
    code = main(["baseline", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, (printed.out + printed.err).splitlines()


def refused(capsys, *arguments):
    code, lines = baseline(capsys, *arguments)
    assert (code, len(lines)) == (2, 1)
    return lines[0]


def days(path=FILE):
    return [int(occasion.date[8:10]) for occasion in parse(path.read_bytes()).occasions]


# Two branches


def branches(store, base, ours, theirs):
    """A repository on whose branches `main` and `other` a baseline was updated, with the driver installed."""
    git("init", "-q", "-b", "main")
    assert main(["baseline", "install"]) == 0

    def commit(made):
        store.save(made, {"": b"\x1f\x8b" + made.occasions[-1].date.encode()})
        git("add", "--all")
        git("commit", "-q", "-m", "update")

    commit(base)
    git("branch", "other")
    commit(ours)
    git("switch", "-q", "other")
    commit(theirs)
    git("switch", "-q", "main")


BASE = measured(1, 10.0)


def test_git_joins_what_two_branches_added(project, capsys):
    branches(project, BASE, append(BASE, measured(2, 12.0)), append(BASE, measured(3, 13.0)))
    git("merge", "-q", "--no-edit", "other")
    assert days() == [1, 2, 3]
    assert project.exemplars(TEST, "cpu")[0] == {"": TRACE.resolve()}
    assert git("status", "--porcelain") == ""
    capsys.readouterr()
    assert baseline(capsys, "verify") == (0, ["1 baseline verified"])


def test_git_takes_the_side_whose_code_changed(project, capsys):
    branches(project, BASE, append(BASE, measured(2, 12.0)), measured(3, 13.0, "b"))
    git("merge", "-q", "--no-edit", "other")
    assert days() == [3]
    # Git merges each file alone: our trace is not the one of their record.
    assert project.exemplars(TEST, "cpu") == ({}, (TRACE.resolve(),))
    capsys.readouterr()
    code, lines = baseline(capsys, "verify")
    assert (code, len(lines)) == (1, 2)
    assert lines[0].startswith(f"{TRACE.as_posix()}: is not the trace of {FILE.as_posix()}, and is ignored")


def test_git_stops_where_both_branches_measured_other_code(project):
    branches(project, BASE, measured(2, 12.0, "b"), measured(3, 13.0, "c"))
    said = git("merge", "--no-edit", "other", code=1)
    assert f"perfdl baseline merge: conflict in {FILE.as_posix()}: both sides recorded the test" in said
    assert f"Record the merged code with pytest --perf-update=all {TEST}, and git add the file" in said
    assert days() == [2]
    assert project.exemplars(TEST, "cpu")[0] == {"": TRACE.resolve()}
    assert f"UU {FILE.as_posix()}" in git("status", "--porcelain")


def test_git_joins_baselines_that_both_branches_added(project):
    git("init", "-q", "-b", "main")
    assert main(["baseline", "install"]) == 0
    git("add", "--all")
    git("commit", "-q", "-m", "nothing yet")
    git("branch", "other")
    for branch, day in (("main", 2), ("other", 3)):
        git("switch", "-q", branch)
        project.save(measured(day, 10.0 + day), {})
        git("add", "--all")
        git("commit", "-q", "-m", "update")
    git("merge", "-q", "--no-edit", "main")
    assert days() == [2, 3]


def test_installing_again_writes_nothing(capsys):
    git("init", "-q")
    Path("baselines").mkdir()
    attributes = Path("baselines/.gitattributes")
    attributes.write_text("*.md text")
    code, lines = baseline(capsys, "install")
    assert code == 0
    assert lines[-1].startswith("commit baselines/.gitattributes; every clone runs `perfdl baseline install` once")
    assert attributes.read_text().splitlines() == [
        "*.md text",
        "*.json merge=perfdl",
        "*.trace.json.gz -text -diff merge=perfdl-trace",
    ]
    config, text = Path(".git/config").read_text(), attributes.read_text()
    code, lines = baseline(capsys, "install")
    assert code == 0
    assert lines
    assert all(line.startswith("unchanged") for line in lines)
    assert (Path(".git/config").read_text(), attributes.read_text()) == (config, text)


def test_installing_outside_of_a_repository_is_refused(capsys):
    assert refused(capsys, "install").endswith("is not in a git repository: run git init first")
    assert "nothing to install" in refused(capsys, "install", "--dir", "memory://store")


def test_merging_files_without_git(tmp_path, capsys):
    paths = [tmp_path / name for name in ("base", "ours", "theirs")]
    for path, made in zip(paths, (BASE, append(BASE, measured(2, 12.0)), append(BASE, measured(3, 13.0))), strict=True):
        path.write_bytes(dump(made))
    assert baseline(capsys, "merge", *paths) == (0, [])
    assert days(paths[1]) == [1, 2, 3]
    assert "cannot be read: No such file or directory" in refused(capsys, "merge", *paths[:2], tmp_path / "gone")


def test_names_from_files_reach_no_terminal(tmp_path, capsys):
    paths = [tmp_path / name for name in ("base", "ours", "theirs")]
    paths[0].write_bytes(b"")
    for path, digit in zip(paths[1:], "bc", strict=True):
        path.write_bytes(dump(measured(2, 12.0, digit, test="a.py::t[\x1b[31m]")))
    code, (line,) = baseline(capsys, "merge", *paths, "a\x1b]0;x.json")
    assert (code, "\x1b" in line) == (1, False)


# Names


def test_a_file_that_was_renamed_keeps_its_baselines(project, capsys):
    for key in ("cpu", "gpu"):
        project.save(measured(1, 10.0, key=key), {"": b"trace"})
    other = measured(1, 10.0, test="tests/test_speed2.py::test_step")
    project.save(other, {})
    code, lines = baseline(capsys, "rename", "tests/test_speed.py", "tests/perf/test_new.py")
    assert (code, len(lines)) == (0, 2)
    assert lines[0] == f"renamed  {TEST} -> tests/perf/test_new.py::test_step  (cpu)"
    for key in ("cpu", "gpu"):
        assert project.load(TEST, key) is None
        assert list(project.exemplars("tests/perf/test_new.py::test_step", key)[0]) == [""]
    assert project.load(other.test, "cpu") is not None
    assert baseline(capsys, "verify")[0] == 0
    assert baseline(capsys, "rename", "tests/test_speed.py", "tests/x.py")[0] == 3


@pytest.mark.parametrize(
    "old, new, gone, there",
    [
        (TEST, "tests/test_speed.py::test_other", "test_step[a]", "test_other[a]"),
        (f"{TEST}[a]", f"{TEST}[b]", "test_step[a]", "test_step[b]"),
        ("tests", "perf/all", "test_step[a]", None),
    ],
)
def test_a_test_a_parameter_or_a_folder_is_renamed(project, capsys, old, new, gone, there):
    project.save(measured(1, 10.0, test=f"{TEST}[a]"), {})
    project.save(measured(1, 10.0, test="tests/test_speed.py::test_stepper"), {})
    assert baseline(capsys, "rename", old, new)[0] == 0
    assert project.load(f"tests/test_speed.py::{gone}", "cpu") is None
    renamed = f"tests/test_speed.py::{there}" if there else "perf/all/test_speed.py::test_step[a]"
    assert project.load(renamed, "cpu").test == renamed
    stepper = "perf/all" if there is None else "tests"
    assert project.load(f"{stepper}/test_speed.py::test_stepper", "cpu") is not None


def test_a_name_that_is_taken_is_refused_before_anything_moves(project, capsys):
    taken = "tests/test_new.py::test_step"
    project.save(measured(1, 10.0, test="tests/test_speed.py::test_first"), {})
    project.save(measured(1, 10.0), {})
    project.save(measured(2, 12.0, test=taken), {})
    line = refused(capsys, "rename", "tests/test_speed.py", "tests/test_new.py")
    assert "nothing was renamed, because baselines/cpu/tests/test_new/test_step.json exists" in line
    assert project.load("tests/test_speed.py::test_first", "cpu") is not None
    assert "not of one kind" in refused(capsys, "rename", TEST, "tests/test_new.py")


def test_a_rename_that_was_interrupted_is_repeated(project, capsys, monkeypatch):
    project.save(measured(1, 10.0), {"": b"trace"})

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, "remove", interrupt)
        with pytest.raises(KeyboardInterrupt):
            main(["baseline", "rename", "tests", "perf"])
    assert baseline(capsys, "rename", "tests", "perf")[0] == 0
    assert baseline(capsys, "verify") == (0, ["1 baseline verified"])


# Former forms


def test_a_former_form_is_rewritten_and_said(project, capsys):
    project.save(measured(1, 10.0), {})
    data = json.loads(FILE.read_bytes())
    data["calls"][0]["rows"][0] |= {"kind": "idle", "name": "synchronisation"}
    FILE.write_text(json.dumps(data))
    where = "baselines/cpu/tests/test_speed/test_step.json"
    before = FILE.read_bytes()
    assert baseline(capsys, "migrate", "--check") == (
        1,
        [f"outdated  {where}  (calls[0].rows[0].name)", "1 baseline of 1 would change"],
    )
    assert FILE.read_bytes() == before
    assert baseline(capsys, "migrate") == (
        0,
        [f"migrated  {where}  (calls[0].rows[0].name)", "1 baseline of 1 changed"],
    )
    assert b"synchronization" in FILE.read_bytes()
    assert baseline(capsys, "migrate", "--check") == (0, ["0 baselines of 1 would change"])


def test_a_record_in_a_former_place_moves_with_its_traces(project, capsys):
    project.save(measured(1, 10.0), {"": b"trace"})
    former = FILE.with_name("former.json")
    FILE.rename(former)
    TRACE.rename(TRACE.with_name("former.trace.json.gz"))
    code, lines = baseline(capsys, "migrate")
    assert (code, "moved to baselines/cpu/tests/test_speed/test_step.json" in lines[0]) == (0, True)
    assert list(project.exemplars(TEST, "cpu")[0]) == [""]
    assert baseline(capsys, "verify") == (0, ["1 baseline verified"])


# What is wrong


def test_each_file_that_is_wrong_has_one_line(project, capsys):
    calls = tuple(Call(name, {"ops": counted(1)}, (), (1,)) for name in ("", "fwd"))
    made = record(calls=calls, test=TEST, key=Key("cpu", {}))
    project.save(made, {"": b"trace", "fwd": b"other"})
    folder = FILE.parent
    Path("baselines/.gitattributes").write_text("")
    TRACE.write_bytes(b"of another day")
    (folder / "test_gone.trace.json.gz").write_bytes(b"x")
    (folder / ".perfdl-0123456789abcdef.tmp").write_bytes(b"x")
    (folder / "notes.txt").write_text("mine")
    (folder / "broken.json").write_text("{\n<<<<<<< HEAD\n")
    shutil.copy(FILE, folder / "copy.json")
    (folder / "link.json").symlink_to("copy.json")
    Path("baselines/cpu/machine.json").write_text("[]")
    code, lines = baseline(capsys, "verify")
    assert code == 1
    said = dict(line.split(": ", 1) for line in lines[:-1])
    assert {Path(name).name: why.split(":")[0] for name, why in said.items()} == {
        "test_step.trace.json.gz": f"is not the trace of {FILE.as_posix()}, and is ignored",
        "test_gone.trace.json.gz": "belongs to no baseline",
        ".perfdl-0123456789abcdef.tmp": "was left by a writer that was killed",
        "notes.txt": "belongs to no baseline",
        "broken.json": "has an unresolved merge conflict at line 2",
        "copy.json": f"belongs in {FILE.as_posix()}",
        "link.json": "is a symbolic link",
        "machine.json": "cannot be used",
    }
    assert lines[-1].endswith("verified, 8 problems")


def test_names_that_differ_in_case_alone(project, capsys):
    project.save(measured(1, 10.0), {})
    upper = FILE.with_name("TEST_STEP.json")
    upper.write_bytes(FILE.read_bytes())
    if upper.samefile(FILE):
        pytest.skip("this file system folds case")
    code, lines = baseline(capsys, "verify")
    assert code == 1
    assert any("differs from TEST_STEP.json only in case" in line for line in lines)


def test_nothing_to_verify(capsys):
    assert "there is no baselines folder baselines" in refused(capsys, "verify")
    Path("baselines").mkdir()
    assert baseline(capsys, "verify") == (3, ["0 baselines verified"])


def test_a_local_folder_has_no_updates_to_compact(project, capsys):
    assert "baselines is no remote store" in refused(capsys, "compact")
