"""`perfdl baseline`: names that move, and what is wrong with files."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from making import COMMIT, counted, record, rows, timed

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.cli import main
from pytest_perfdl.model.errors import BaselineError
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


class Killed(BaseException):
    """The process does nothing any more."""


def killing(monkeypatch, number):
    """Kill the process before its file operation of a number: that one and all later ones raise."""
    done = []

    def failing(function):
        def call(*arguments, **named):
            done.append(function.__name__)
            if len(done) > number:
                raise Killed
            return function(*arguments, **named)

        return call

    for owner, names in ((os, ("replace", "rename", "unlink", "mkdir", "fsync")), (Path, ("open",))):
        for name in names:
            monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    return done


def files(project):
    return {path.relative_to(project.base): path.read_bytes() for path in project.base.rglob("*") if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("lost", ["", "fwd"], ids=["all traces are there", "a trace is another day's"])
def test_a_rename_that_is_killed_at_any_file_operation_is_repeated(project, capsys, monkeypatch, lost):
    """Nothing of a recording is missing at any moment, and afterwards all is as if nobody had been killed."""
    traces = {"": b"trace", "fwd": b"other"}
    calls = tuple(Call(name, {"ops": counted(1)}, (), (1,)) for name in traces)
    for key in ("cpu", "gpu"):
        project.save(record(calls=calls, test=TEST, key=Key(key, {})), traces)
    if lost:
        project.path(TEST, "cpu").with_name(f"test_step.{lost}.trace.json.gz").write_bytes(b"another day's")
    before = files(project)
    assert baseline(capsys, "rename", "tests", "perf")[0] == 0
    after = files(project)
    kept = {data for data in before.values() if data in after.values()}
    assert len(after) == len(before) - bool(lost)
    number = 0
    while True:
        shutil.rmtree(project.base)
        for path, data in before.items():
            (project.base / path).parent.mkdir(parents=True, exist_ok=True)
            (project.base / path).write_bytes(data)
        with monkeypatch.context() as patched:
            done = killing(patched, number)
            try:
                main(["baseline", "rename", "tests", "perf"])
            except Killed:
                pass
            else:
                break
        assert kept <= set(files(project).values()), done
        if files(project) != after:
            assert baseline(capsys, "rename", "tests", "perf")[0] == 0
        assert files(project) == after, done
        number += 1
    assert number > 20
    capsys.readouterr()
    assert baseline(capsys, "verify") == (0, ["2 baselines verified"])


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


def conflicted(store):
    """A repository in which a merge left conflict marks in a baseline."""
    git("init", "-q", "-b", "main")
    for branch, day in (("main", 1), ("other", 2), ("main", 3)):
        git("switch", "-q", *(["-c"] if branch == "other" else []), branch) if day > 1 else None
        store.save(measured(day, 10.0 + day), {"": f"trace {day}".encode()})
        git("add", "--all")
        git("commit", "-q", "-m", "Record")
    assert "CONFLICT" in git("merge", "other", code=1)


@pytest.mark.parametrize("style", ["merge", "diff3"])
@pytest.mark.parametrize("side, day", [("--ours", 3), ("--theirs", 2)])
def test_a_merge_conflict_is_told_and_ends_with_either_side(project, capsys, monkeypatch, style, side, day):
    for number, (name, value) in enumerate((("merge.conflictStyle", style), ("init.defaultBranch", "main"))):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", name)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    conflicted(project)
    mark = FILE.read_text().splitlines().index("<<<<<<< HEAD") + 1
    why = (
        f"has an unresolved merge conflict at line {mark}: take either side (git checkout --ours or --theirs), then "
        "record again with pytest --perf-update=all"
    )
    capsys.readouterr()
    assert baseline(capsys, "verify") == (1, [f"{FILE.as_posix()}: {why}", "0 of 1 baseline verified, 1 problem"])
    with pytest.raises(BaselineError, match=f"^{re.escape(f'{FILE.as_posix()} {why}')}$"):
        project.load(TEST, "cpu")
    git("checkout", side, "baselines")
    assert baseline(capsys, "verify") == (0, ["1 baseline verified"])
    assert project.load(TEST, "cpu").occasions[0].date.startswith(f"2026-05-0{day}")


@pytest.mark.parametrize("line", ["=======", ">>>>>>> other", "||||||| parent of 1a2b3c", "<<<<<<< HEAD", "=======\r"])
@pytest.mark.parametrize("name", ["tests/test_speed/test_step.json", "machine.json"])
def test_any_mark_that_is_left_is_told(project, capsys, name, line):
    project.save(measured(1, 10.0), {})
    path = Path("baselines/cpu") / name
    lines = (FILE.read_text() if path == FILE else "{}").splitlines()
    path.write_text("\n".join([lines[0], line, *lines[1:]]), newline="")
    code, lines = baseline(capsys, "verify")
    assert (code, lines[0][: len(path.as_posix()) + 46]) == (
        1,
        f"{path.as_posix()}: has an unresolved merge conflict at line 2: ",
    )


def test_a_record_in_another_place_is_told(project, capsys):
    project.save(measured(1, 10.0), {})
    FILE.rename(FILE.with_name("other.json"))
    assert refused(capsys, "rename", "tests", "perf") == (
        "perfdl baseline: baselines/cpu/tests/test_speed/other.json is not where its baseline belongs: move it to "
        f"{FILE} first"
    )
    code, lines = baseline(capsys, "verify")
    assert code == 1
    assert lines[0].endswith(f"other.json: belongs in {FILE}: move it there with its traces, or delete the file")


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
