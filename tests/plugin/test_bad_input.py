"""Mistakes are told in one line, with the place and what to do, and leave nothing half-written."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from plugin.project import NOT_JUDGED, SHORT

STEP = """
    import pytest

    @pytest.mark.perf
    def test_step():
        pass
"""


def refused(inner, *args, message, plugins=()):
    """Run, and see that pytest refuses with this one line and does nothing."""
    named = [f"-p{name}" for name in plugins]
    result = inner.runpytest_inprocess(*named, *args)
    lines = [line for line in (*result.errlines, *result.outlines) if "usage: pytest" not in line]
    errors = [line for line in lines if "ERROR:" in line or "error:" in line]

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len(errors) == 1, result.errlines
    assert message in errors[0]
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    assert "measured nothing" not in result.stdout.str()
    assert not (inner.path / "baselines").exists()
    assert not (inner.path / "perf-report").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            "step=5",
            (
                "unknown keyword 'step'; valid keywords: backend, budget, limits, loops, period, ranks, repeats, "
                "resolution, scaling, seed, shared, steps, tags, threads, timeout"
            ),
        ),
        ("5", "expected keyword arguments only, got 5"),
        ("limits=5", "limits= must map metric names to quantities, got 5"),
        ("limits={'step_time': True}", "limits['step_time'] must be a string or a number, got True"),
        ("limits={'step_time': 'fast'}", "invalid limit of step_time: 'fast' is not a valid limit"),
        ("limits={'ops': '3ms'}", "invalid limit of ops: '3ms' is not a quantity"),
        ("budget={'step_time': '45 parsecs'}", "invalid budget of step_time: '45 parsecs' is not a quantity"),
        ("budget={'step_time': float('nan')}", "invalid budget of step_time: 'nan' is not a quantity"),
        ("steps='4'", "steps= must be an integer of at least 2, got '4'"),
        ("steps=1", "steps= must be an integer of at least 2, got 1"),
        ("warmup=-1", "warmup= must be an integer of at least 0, got -1"),
        ("repeats=0", "repeats= must be an integer of at least 1, got 0"),
        ("threads=True", "threads= must be an integer of at least 1, got True"),
        ("seed=0.5", "seed= must be an integer of at least 0, got 0.5"),
        ("timeout=0", "timeout= must be a number of seconds above 0, got 0"),
        ("timeout=float('inf')", "timeout= must be a number of seconds above 0, got inf"),
        ("tags='slow'", "tags= must be a tuple of strings, got 'slow'"),
        ("tags=5", "tags= must be a tuple of strings, got 5"),
    ],
)
def test_a_marker_that_cannot_be_used(inner, arguments, message):
    inner.makepyfile(test_it=f"import pytest\n@pytest.mark.perf({arguments})\ndef test_step(): pass\n")
    errs(inner, test_step=f"@pytest.mark.perf: {message}")


def test_a_marker_on_a_class_or_module_is_checked_too(inner):
    inner.makepyfile(
        "import pytest\npytestmark = pytest.mark.perf(nothing=1)\nclass TestIt:\n    def test_step(self): pass\n"
    )
    errs(inner, **{"TestIt::test_step": "@pytest.mark.perf: unknown keyword 'nothing'"})


def test_every_bad_marker_is_named(inner):
    inner.makepyfile(
        "import pytest\n@pytest.mark.perf(a=1)\ndef test_a(): pass\n@pytest.mark.perf(b=1)\ndef test_b(): pass\n"
    )
    errs(inner, test_a="@pytest.mark.perf: unknown keyword 'a'", test_b="@pytest.mark.perf: unknown keyword 'b'")


def test_markers_are_nobody_elses_business_without_the_flag(inner):
    inner.makepyfile("import pytest\n@pytest.mark.perf('theirs', anything=1)\ndef test_step(): pass\n")

    assert inner.runpytest_inprocess().ret == 0
    assert inner.runpytest_inprocess("--perf", "-operf_marker=speed").ret == 5


MISTAKES = {
    "Test::test_step": "sizes are arguments, which methods of a unittest.TestCase do not get: use a test function",
    "test_async_generator": "a perf test cannot be a generator function: remove yield from the test",
    "test_generator": "a perf test cannot be a generator function: remove yield from the test",
    "test_benchmark": "the whole test is the step, but its fixture benchmark (pytest-benchmark) measures by itself",
    "test_absent_size": "scaling= gives batch, which is not an argument of the test: add the argument",
    "test_size_twice[4]": "scaling= and @pytest.mark.parametrize both give batch: remove one of them",
    "test_wrong_sizes": "scaling['batch'] must be at least three different numbers above 0, got [1]",
    "test_address[<object object at 0x7f0123456789>]": "the test id contains an address, which differs in every",
    "test_wrong_ranks": "ranks= must be an integer of at least 1, got 0",
}
WITH_MISTAKES = """
    import unittest
    import pytest

    pytestmark = pytest.mark.perf
    scaling = pytest.mark.perf(scaling={"batch": [1, 2, 3]})

    class Test(unittest.TestCase):
        @scaling
        def test_step(self):
            pass

    async def test_async_generator():
        yield

    def test_generator():
        yield

    def test_benchmark(benchmark):
        benchmark(int)

    @scaling
    def test_absent_size():
        pass

    @scaling
    @pytest.mark.parametrize("batch", [4])
    def test_size_twice(batch):
        pass

    @pytest.mark.perf(scaling={"batch": [1]})
    def test_wrong_sizes(batch):
        pass

    @pytest.mark.parametrize("value", [pytest.param(0, id="<object object at 0x7f0123456789>")])
    def test_address(value):
        pass

    @pytest.mark.perf(ranks=0)
    def test_wrong_ranks():
        pass
    """


def errs(inner, *args, **problems):
    """Run, and see that each of these tests fails in its setup with its line, and that nothing is recorded."""
    result = inner.runpytest_inprocess("--perf", "--perf-json=run.json", *args)
    results = {
        each["id"].partition("::")[2]: each for each in json.loads((inner.path / "run.json").read_text())["tests"]
    }

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for name, problem in problems.items():
        assert any(problem in line for line in result.outlines), problem
        assert results[name]["verdict"] == "invalid"
        assert problem in results[name]["reason"]
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    assert not (inner.path / "baselines").exists()
    return result


def test_a_test_with_a_mistake_fails_alone(inner):
    inner.makepyfile(test_it=WITH_MISTAKES, test_other="def test_other(): pass\n")
    # Beside pytest-xdist, as this suite runs, pytest-benchmark warns unless it is off.
    result = errs(inner, "-pbenchmark", "--benchmark-disable", "--perf-update", **MISTAKES)

    result.assert_outcomes(passed=1, errors=len(MISTAKES))


def test_with_shards_a_test_with_a_mistake_fails_in_one(inner):
    inner.makepyfile(test_it="import pytest\n@pytest.mark.perf(a=1)\ndef test_step(): pass\n")

    assert inner.runpytest_inprocess("--perf", "--perf-shard=1/2").ret == pytest.ExitCode.TESTS_FAILED
    assert inner.runpytest_inprocess("--perf", "--perf-shard=2/2").ret == pytest.ExitCode.OK


def test_a_mistake_in_the_only_test_is_said_in_this_process_too(inner):
    inner.makepyfile("import pytest\n@pytest.mark.perf(a=1)\ndef test_step(): pass\n")
    result = inner.runpytest_inprocess("--perf", "--perf-isolate=none")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "unknown keyword 'a'" in result.stdout.str()
    assert "no perf test was selected" not in result.stdout.str()


def test_without_the_flag_pytest_runs_what_it_can(inner):
    """A generator function ends pytest's collection, as it does without the plugin."""
    inner.makepyfile(test_it=WITH_MISTAKES.replace("yield", "pass"))
    result = inner.runpytest_inprocess("-pbenchmark", "--benchmark-disable")
    told = result.stdout.str()

    for name in ("test_absent_size", "test_size_twice[4]", "test_wrong_sizes"):
        assert MISTAKES[name] in told
    assert "test_async_generator" in told, "as pytest says"
    result.assert_outcomes(passed=4, failed=1, errors=4)


@pytest.mark.parametrize(
    "option, ini, value, message",
    [
        ("--perf-limit", "perf_limits", "nonsense", "'nonsense': expected METRIC:SPEC, such as step_time:3%"),
        ("--perf-limit", "perf_limits", "step_time:fast", "limit of step_time: 'fast' is not a valid limit"),
        (
            "--perf-limit",
            "perf_limits",
            "step_time:3%+4%",
            "limit of step_time: '3%+4%' has two percentages or two absolute parts",
        ),
        (
            "--perf-fail-on",
            "perf_fail_on",
            "slower",
            "--perf-fail-on (ini perf_fail_on): 'slower' is not a verdict that can fail a test: expected inv",
        ),
        ("--perf-fail-on", "perf_fail_on", "unchanged", "'unchanged' is not a verdict that can fail a test"),
        ("--perf-steps", "perf_steps", "many", "= 'many': expected an integer of at least 2"),
        ("--perf-steps", "perf_steps", "1", "= '1': expected an integer of at least 2"),
        ("--perf-warmup", "perf_warmup", "-1", "= '-1': expected an integer of at least 0"),
        ("--perf-repeats", "perf_repeats", "0", "= '0': expected an integer of at least 1"),
        ("--perf-threads", "perf_threads", "1.5", "= '1.5': expected an integer of at least 1"),
        ("--perf-timeout", "perf_timeout", "0", "= '0': expected a number of seconds above 0"),
        ("--perf-timeout", "perf_timeout", "soon", "= 'soon': expected a number of seconds above 0"),
        ("--perf-timeout", "perf_timeout", "inf", "= 'inf': expected a number of seconds above 0"),
    ],
)
@pytest.mark.parametrize("way", ["flag", "ini", "override"])
def test_an_option_that_cannot_be_used(inner, option, ini, value, message, way):
    inner.makepyfile(STEP)
    if way == "ini":
        inner.makeini(f"[pytest]\n{ini} = {value}\n")
    args = {"flag": [f"{option}={value}"], "ini": [], "override": [f"-o{ini}={value}"]}[way]
    place = option if way == "flag" else f"ini {ini}"
    refused(inner, "--perf", *args, message=f"{place} {message}" if message.startswith("=") else message)


@pytest.mark.parametrize(
    "args, message",
    [
        (["--perf-update=sometimes"], "--perf-update = 'sometimes': expected one of new, changed, all, append"),
        (["--perf-traces=some"], "--perf-traces = 'some': expected one of regressed, all, none"),
        (["--perf", "-operf_traces=some"], "ini perf_traces = 'some': expected one of regressed, all, none"),
        (["--perf-isolate=thread"], "--perf-isolate = 'thread': expected one of process, none"),
        (["--perf-require=2"], "--perf-require needs --perf"),
        (
            ["--perf", "--perf-require=2", "--perf-isolate=none"],
            "--perf-require cannot be combined with --perf-isolate=none or debugger options",
        ),
        (
            ["--perf", "--perf-require=2", "--pdb"],
            "--perf-require cannot be combined with --perf-isolate=none or debugger options",
        ),
        (["--perf", "--perf-require=-1"], "--perf-require = '-1': expected an integer of at least 0"),
        (["--perf", "-operf_require=some"], "ini perf_require = 'some': expected an integer of at least 0"),
        (["--no-perf", "--perf-update"], "--no-perf and --perf-update cannot be combined: remove one of them"),
        (
            ["--perf-update", "--perf-isolate=none"],
            "--perf-isolate=none measures in pytest's process, which cannot record",
        ),
        (["--perf-update", "--pdb"], "--pdb measures in pytest's process, which cannot record baselines"),
        (["--perf-update", "--setup-show"], "--setup-show measures in pytest's process, which cannot record baselines"),
    ],
)
def test_options_that_contradict(inner, args, message):
    inner.makepyfile(STEP)
    refused(inner, *args, message=message)


@pytest.mark.parametrize("args, ini", [(["-n2"], ""), ([], "addopts = -n auto"), (["-n1", "-operf=true"], "")])
def test_xdist(inner, args, ini):
    pytest.importorskip("xdist")
    inner.makepyfile(STEP)
    inner.makeini(f"[pytest]\n{ini}\n")
    enabling = [] if "-operf=true" in args else ["--perf"]
    refused(inner, *enabling, *args, plugins=["xdist"], message="--perf cannot run with pytest-xdist")


def test_xdist_turned_off(inner):
    pytest.importorskip("xdist")
    inner.makeini("[pytest]\naddopts = -n auto\n")

    assert inner.runpytest_inprocess("-pxdist", "--perf", "-n0").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert inner.runpytest_inprocess("-pxdist", "--perf", "--collect-only").ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("isolate", ["process", "none"])
def test_a_gate_that_measured_nothing_is_not_green(inner, isolate):
    inner.makepyfile("def test_ordinary(): pass\n")
    result = inner.runpytest_inprocess("--perf", f"--perf-isolate={isolate}")

    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["perf: no perf test was selected, so nothing was measured"])
    assert inner.runpytest_inprocess("--perf", "-k", "nothing").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_report_that_fails_costs_neither_the_summary_nor_the_status(inner, monkeypatch):
    def fail(*_):
        raise ValueError("\x1b[2Junforeseen")

    monkeypatch.setattr("pytest_perfdl.report.html.render", fail)
    inner.makeconftest("def pytest_perfdl_report(run): raise KeyError('of a hook')")
    inner.makepyfile("import pytest\n\n@pytest.mark.skip\ndef test_it(perf): perf(int)\n")
    result = inner.runpytest_inprocess("--perf", "--perf-json=own.json")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*perf summary*",
            "0 compared. *1 unmeasured.*",
            "perf: the HTML report cannot be written: ValueError: ?x1b[[]2Junforeseen; the measured data is in *",
            "perf: the hook pytest_perfdl_report failed: KeyError: 'of a hook'",
            "*1 skipped*",
        ]
    )
    for name in ("perf-report/run.json", "own.json"):
        assert json.loads((inner.path / name).read_text())["counts"] == {"unmeasured": 1}


def test_a_summary_that_fails_costs_neither_the_rest_nor_the_status(inner, monkeypatch):
    def fail(*_, **__):
        raise ValueError("unforeseen")

    monkeypatch.setattr("pytest_perfdl.run.session.summary_lines", fail)
    inner.makepyfile(
        "import pytest\n\n@pytest.mark.skip\ndef test_it(perf): perf(int)\n\ndef test_ordinary(): assert 0\n"
    )
    result = inner.runpytest_inprocess("--perf")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["perf: writing the summary failed: ValueError: unforeseen", "*1 failed, 1 skipped*"])


@pytest.mark.long
def test_an_error_while_collecting_is_told_by_pytest(inner):
    inner.makepyfile("import a_module_that_does_not_exist\n")
    result = inner.runpytest_inprocess("--perf")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*No module named 'a_module_that_does_not_exist'"])


@pytest.mark.long
def test_baselines_that_cannot_be_used(project):
    names = ["sound", "cut", "conflict", "newer", "other", "text", "folder"]
    project.write("test_it.py", "\n".join(f"def test_{name}(perf):\n    assert perf(int) == 0\n" for name in names))
    options = ("--perf-repeats=1", *SHORT, "--perf-fail-on=invalid")
    assert project.run("--perf-update", *options, "-k", "sound").code == 0
    sound = project.baseline("test_sound")
    text = sound.read_text()

    def damage(name, change):
        sound.with_name(f"test_{name}.json").write_text(change(text.replace("test_sound", f"test_{name}")))

    damage("cut", lambda text: text[: len(text) // 2])
    damage("conflict", lambda text: "<<<<<<< HEAD\n" + text)
    damage("newer", lambda text: text.replace('"schema": 1', '"schema": 1000'))
    damage("other", lambda text: text.replace("test_other", "test_elsewhere"))
    damage("text", lambda text: json.dumps({"schema": 1}))
    sound.with_name("test_folder.json").mkdir()
    other_trace = sound.with_name("test_sound.trace.json.gz")
    other_trace.write_bytes(b"of another day")
    before = project.baselines()
    litter = sound.with_name(".perfdl-0123456789abcdef.tmp")
    litter.write_text("of a run that was killed")
    finished = project.run("--perf", *options, "--junitxml=junit.xml")
    cases = project.cases()

    assert finished.code == 1
    assert cases["test_sound"].outcome == "passed"
    assert not litter.exists()
    told = json.loads((project.root / "perf-report" / "run.json").read_text())["tests"]
    (sound_run,) = (one for one in told if one["id"].endswith("test_sound"))
    shown = other_trace.relative_to(project.root).as_posix()
    assert [note["message"] for note in sound_run["integrity"] if note["code"] == "other-trace"] == [
        f"{shown} is ignored, because the trace in this file does not belong to the recorded baseline"
    ]
    where = sound.parent.relative_to(project.root).as_posix()
    for name, message in {
        "cut": "is damaged at line",
        "conflict": "has an unresolved merge conflict at line 1",
        "newer": "was written by another version of pytest-perfdl (schema 1000, this one reads 1): use that version",
        "other": "contains a baseline of test_it.py::test_elsewhere with machine ID",
        "text": "is malformed (missing field `test`)",
        "folder": "cannot be read: Is a directory",
    }.items():
        case = cases[f"test_{name}"]
        assert case.outcome == "failure"
        assert f"{where}/test_{name}.json {message}" in case.text
        assert len(case.text.strip().splitlines()) == 2  # once as pytest's message, once as its text
    assert project.baselines() == before

    # Only the mode that writes everything anew may write over what it cannot read.
    assert project.run("--perf-update", *options, "-k", "cut").code == 1
    assert project.baselines() == before
    assert project.run("--perf-update=all", *options, "-k", "cut").code == 0
    assert json.loads(project.baseline("test_cut").read_text())["test"] == "test_it.py::test_cut"


def mounted(project, mount, command):
    """Run pytest on a project over whose baseline folder something is mounted; skip where that is not allowed."""
    (project.root / "baselines").mkdir(exist_ok=True)
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", "--mount", *user, "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, mount], cwd=project.root, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting is not allowed here")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    left = "find baselines -type f | sed s/^/left:/"
    script = f"{mount}; {sys.executable} -m pytest -p perfdl {command}; code=$?; {left}; exit $code"
    return subprocess.run(
        [*unshare, script], cwd=project.root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.long
def test_a_baseline_folder_that_cannot_be_written(project):
    project.write("test_it.py", STEP)
    done = mounted(project, "mount -t tmpfs -o ro none baselines", "--perf-update")

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: baselines cannot be written: Read-only file system: make this path writable" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.long
def test_a_full_disk(project):
    project.write("test_it.py", STEP)
    fill = "mount -t tmpfs -o size=64k none baselines; head -c 65536 /dev/zero > baselines/filler"
    done = mounted(project, fill, f"--perf-update --perf-repeats=1 {' '.join(SHORT)}")

    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "cannot be written: No space left on device: free disk space and record again" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("left:")] == ["left:baselines/filler"]


@pytest.mark.long
@pytest.mark.parametrize("isolate", ["process", "none"])
def test_a_test_that_only_exists_once(project, isolate):
    """A parametrization that differs between processes cannot be measured in another one."""
    project.write(
        "test_it.py",
        """
        import os

        import pytest

        @pytest.mark.perf
        @pytest.mark.parametrize("pid", [os.getpid()])
        def test_step(pid):
            pass
        """,
    )
    finished = project.run("--perf", *NOT_JUDGED, f"--perf-isolate={isolate}")

    assert finished.code == (1 if isolate == "process" else 0)
    assert ("ids must be unique and the same in every process" in finished.output) == (isolate == "process")
    assert "Traceback" not in finished.output


@pytest.mark.parametrize("tests, said", [(0, "0 baselines in baselines"), (1, "1 baseline in baselines")])
def test_what_was_measured_of_the_machine_is_no_baseline(inner, tests, said):
    folder = inner.path / "baselines" / "some-cpu"
    (folder / "tests").mkdir(parents=True)
    (folder / "machine.json").touch()
    for number in range(tests):
        (folder / "tests" / f"machine{number}.json").touch()
    result = inner.runpytest_inprocess("--perf", "--collect-only")
    assert any(line.startswith("perf: on") and line.endswith(said) for line in result.outlines)
