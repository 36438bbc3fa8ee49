"""From the first baseline to a caught regression and an accepted change: the life of a perf test.

The step waits busily for a time that the environment names, so that a slowdown of ten times stands out whatever
the machine does meanwhile, and limits are so wide that nothing else does.
"""

import gzip
import json
import re
import subprocess

import pytest
from plugin.project import SHORT, Project

RECORD = ("--perf-repeats=4",)
"""With five fresh repeats, the fewest stored ones that can confirm a slowdown."""
WIDE = ("--perf-limit=step_time:500%", "--perf-limit=block_time:500%", "--perf-steps=8", "--perf-warmup=4")
TEST = """
    import os
    import time

    import pytest


    def step():
        end = time.thread_time() + float(os.environ.get("STEP_SECONDS", "0.002"))
        while time.thread_time() < end:
            pass
        if "EXTRA_OPERATOR" in os.environ:
            import torch

            torch.ones(3) + 1


    @pytest.mark.perf
    def test_step(perf):
        import torch

        torch.ones(3)
        perf(step)
        perf.metric("loss", float(os.environ.get("LOSS", "1")), unit="nat")
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A project after its first `--perf-update`, and what that said."""
    project = Project(tmp_path_factory.mktemp("first") / "project")
    project.write("test_speed.py", TEST)
    return project, project.run("--perf-update", *RECORD, *WIDE, "--junitxml=junit.xml")


@pytest.fixture
def recorded(first, project):
    """A copy of that project, to do with as one likes."""
    project.copy(first[0].root)
    return project


def verdict(project):
    """What the run file says of the only test."""
    (test,) = json.loads((project.root / "perf-report" / "run.json").read_text())["tests"]
    return test


def test_a_test_without_a_baseline_fails_and_says_how_to_record_one(project):
    project.write("test_speed.py", TEST)
    finished = project.run("--perf", *WIDE)

    assert finished.code == 1
    assert "PERF MISSING test_speed.py::test_step" in finished.output
    assert f"python -m pytest --perf-update=new -pperfdl {' '.join(WIDE)} test_speed.py::test_step" in finished.output
    assert not (project.root / "baselines").exists()


@pytest.mark.long
def test_recording_passes_and_says_what_was_written(first):
    project, finished = first
    case = project.cases()["test_step"]

    assert finished.code == 0
    # On a slow machine a line of progress stands between the file and the letter.
    assert re.search(r"(?m)^(test_speed\.py )?\. +\[100%\]$", finished.output)
    assert re.search(r"(?m)^RECORDED      test_speed.py::test_step\n    step_time .+ in \d+ process", finished.output)
    assert "1 baseline recorded" in finished.output
    assert (case.outcome, case.properties["perf.verdict"]) == ("passed", "missing")
    assert sorted(name.rpartition("/")[2] for name in project.baselines()) == [
        "test_step.json",
        "test_step.trace.json.gz",
    ]


def test_unchanged_code_passes_and_its_baseline_stays_to_the_byte(recorded):
    before = recorded.baselines()
    (record,) = (json.loads(data) for name, data in before.items() if name.endswith("test_step.json"))
    assert sum(occasion["repeats"] for occasion in record["occasions"]) == 4
    assert any(name.endswith("test_step.trace.json.gz") for name in before)

    finished = recorded.run("--perf-update", "--perf-repeats=1", *WIDE, "-v")
    assert finished.code == 0, finished.output
    assert recorded.baselines() == before
    # One repeat on a busy machine may not exclude even this limit, and the operators have no wide one.
    assert verdict(recorded)["verdict"] in ("unchanged", "inconclusive", "suspect")
    assert "PERF RECORDED" not in finished.output


@pytest.mark.long
def test_a_slowdown_fails_the_test_and_tells_everything(recorded):
    options = ("--junitxml=junit.xml", "--perf-json=copy.json", "--perf-limit=loss:10%")
    for _ in range(3):
        finished = recorded.run("--perf", *WIDE, *options, STEP_SECONDS="0.02", LOSS="2")
        # Others may have the processor while the few profiled steps run: then no cause is certain.
        if verdict(recorded)["blame"]:
            break

    assert finished.code == 1
    assert finished.line("PERF REGRESSED test_speed.py::test_step")
    assert "regressed: " in finished.output
    kept = " ".join(["-pperfdl", *WIDE, "--perf-limit=loss:10%"])
    assert f"accept the change  python -m pytest --perf-update {kept} test_speed.py::test_step" in finished.output
    assert "perf-report/index.html" in finished.output
    assert "USDT:" not in finished.output

    told = verdict(recorded)
    assert json.loads((recorded.root / "copy.json").read_text())["tests"] == [told]
    assert (told["verdict"], told["caught_by"]) == ("regressed", ["time"])
    metric = told["metrics"]["step_time"]
    # The rounds end as soon as one time is over its limit, which may be the time of blocks.
    assert metric["verdict"] in ("regressed", "suspect")
    assert 1.5e6 < metric["base"] < 3e6 < 1.5e7 < metric["new"]
    assert all(isinstance(metric[side], int) for side in ("base", "new"))
    assert metric["ci95"][0] <= metric["effect"] <= metric["ci95"][1]
    assert told["blame"][0]["name"] == "Python and host"
    # Of the profiled steps, from which others' share of the processor is taken off: most of what the timed ones lost.
    assert told["blame"][0]["delta_ns"] > (metric["new"] - metric["base"]) / 2
    # A metric of one's own is judged too, by the limit that it was given.
    own = told["metrics"]["loss"]
    assert (own["base"], own["new"], own["limit"], own["verdict"]) == (1, 2, "10%", "regressed")

    (trace,) = told["traces"]
    events = json.loads(gzip.decompress((recorded.root / "perf-report" / trace["diff"]).read_bytes()))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {name.split(",")[0] for name in names} == {"baseline", "current"}

    case = recorded.cases()["test_step"]
    assert case.outcome == "failure"
    assert case.properties["perf.verdict"] == "regressed"
    assert float(case.properties["perf.step_time.change_ratio"]) > 5


@pytest.mark.long
def test_an_operator_more_is_seen_whatever_the_clock_says(recorded):
    before = recorded.baselines()
    finished = recorded.run("--perf", *WIDE, EXTRA_OPERATOR="1")
    assert finished.code == 0, finished.output
    assert re.search(r"(?m)^    ops \d+ -> \d+ \(\+\d+\)$", finished.output), "also of a test that passes"
    told = verdict(recorded)
    assert (told["metrics"]["ops"]["verdict"], told["caught_by"]) == ("changed", ["counts"])
    assert told["verdict"] != "changed", "a count stands beside the verdict on times"
    assert {cause["name"] for cause in told["blame"]} >= {"aten::ones", "aten::add"}

    finished = recorded.run("--perf", *WIDE, "--perf-limit=ops:0", "-v", EXTRA_OPERATOR="1")
    assert finished.code == 1
    assert "test_speed.py::test_step PERF REGRESSED" in finished.output
    assert verdict(recorded)["metrics"]["ops"]["verdict"] == "regressed"
    assert recorded.baselines() == before

    finished = recorded.run("--perf-update", "--perf-repeats=1", *WIDE, "-v", EXTRA_OPERATOR="1")
    assert finished.code == 0
    assert "test_speed.py::test_step PERF RECORDED" in finished.output
    assert recorded.baselines() != before


@pytest.mark.long
def test_a_baseline_is_outdated_when_the_test_changes_and_not_when_its_decorator_does(recorded):
    source = (recorded.root / "test_speed.py").read_text()
    recorded.write("test_speed.py", source.replace("@pytest.mark.perf", "# soon\n@pytest.mark.perf(tags=['speed'])"))
    assert recorded.run("--perf", *WIDE).code == 0

    recorded.write("test_speed.py", source.replace("perf(step)", "perf(step, items=3)"))
    finished = recorded.run("--perf", *WIDE)
    assert finished.code == 1
    assert "PERF OUTDATED test_speed.py::test_step" in finished.output
    kept = " ".join(["-pperfdl", *WIDE])
    assert f"accept the change  python -m pytest --perf-update {kept} test_speed.py::test_step" in finished.output


@pytest.mark.long
def test_appending_joins_the_repeats_of_two_occasions(recorded):
    finished = recorded.run("--perf-update=append", "--perf-repeats=1", *WIDE)
    assert finished.code == 0, finished.output
    record = json.loads(recorded.baseline("test_step").read_text())
    assert [occasion["repeats"] for occasion in record["occasions"]] == [4, 1]
    assert len(record["calls"][0]["metrics"]["step_time"]["values"]) == 5


@pytest.mark.long
def test_appending_what_does_not_belong_changes_nothing(recorded):
    before = recorded.baselines()
    finished = recorded.run("--perf-update=append", "--perf-repeats=1", *WIDE, EXTRA_OPERATOR="1")

    assert finished.code == 1
    assert "cannot append to the baseline of test_speed.py::test_step, which has different " in finished.output
    assert "record the baseline again with pytest --perf-update=all" in finished.output
    assert recorded.baselines() == before


@pytest.mark.long
@pytest.mark.parametrize(
    "mode, chosen, code, expected",
    [
        ("new", "step or outdated or new", 1, {"test_new.json"}),
        ("changed", "outdated or new", 0, {"test_new.json", "test_outdated.json"}),
        ("all", "step", 0, {"test_step.json"}),
    ],
)
def test_which_baselines_a_mode_writes(recorded, mode, chosen, code, expected):
    """One test as it was recorded, one that was recorded with another source, and one that is new."""
    recorded.write(
        "test_speed.py", "".join(TEST.replace("test_step", f"test_{name}") for name in ("step", "outdated", "new"))
    )
    stored = recorded.baseline("test_step")
    stored.with_name("test_outdated.json").write_text(stored.read_text().replace("test_step", "test_outdated"))
    before = recorded.baselines()
    finished = recorded.run(f"--perf-update={mode}", "--perf-repeats=1", *WIDE, "-k", chosen)
    after = recorded.baselines()

    assert finished.code == code, finished.output
    changed = {name.rpartition("/")[2] for name in after if after[name] != before.get(name)}
    assert {name for name in changed if not name.endswith(".gz")} == expected
    assert all(name.replace(".trace.json.gz", ".json") in expected for name in changed)


@pytest.mark.long
def test_a_failing_body_writes_nothing(project):
    project.write("test_speed.py", TEST.replace("perf(step)", "assert perf(step) == 3"))
    said = "and once the peak rates of this machine, about 20 s"
    finished = project.run("--perf-update", *RECORD, *WIDE, "--perf-calibrate=auto")

    assert finished.code == 1
    assert finished.output.count(said) == 1
    assert not (project.root / "baselines").exists()
    project.write("baselines/another-machine/machine.json", "{}")
    assert said not in project.run("--perf-update", *RECORD, *WIDE, "--perf-calibrate=auto").output


def test_without_the_flag_a_line_says_that_nothing_was_measured(inner):
    inner.makepyfile(
        """
        import pytest

        @pytest.mark.perf
        def test_marked(): pass
        def test_fixture(perf): assert perf(lambda: 2) == 2
        def test_ordinary(): pass
        @pytest.mark.perf
        @pytest.mark.skip
        def test_skipped(): pass
        """
    )
    line = "perf: 2 perf tests ran once, unmeasured; run pytest --perf to measure"

    inner.runpytest_inprocess().stdout.fnmatch_lines([line])
    inner.makeini("[pytest]\nperf = true\n")
    result = inner.runpytest_inprocess("--no-perf")
    result.stdout.fnmatch_lines([line])
    result.assert_outcomes(passed=3, skipped=1)
    inner.runpytest_inprocess("--no-perf", "-k", "ordinary").stdout.no_fnmatch_line("perf: *")


@pytest.mark.long
def test_what_must_not_become_a_baseline(project):
    project.write(
        "test_it.py",
        """
        import pytest
        import torch


        @pytest.fixture
        def checked():
            yield
            raise AssertionError("the results were wrong")


        def test_torn_down(perf, checked):
            perf(int)


        def test_threads(perf):
            perf(lambda: torch.set_num_threads(2))
        """,
    )
    finished = project.run("--perf-update", *SHORT, "--perf-repeats=1", "--perf-json=run.json")
    tests = json.loads((project.root / "run.json").read_text())["tests"]
    told = {test["id"].partition("::")[2]: (test["verdict"], test["reason"]) for test in tests}

    assert finished.code == 1
    assert project.baselines() == {}
    assert told["test_torn_down"] == ("invalid", "no baseline was recorded, because the test's teardown phase failed")
    assert told["test_threads"][0] == "invalid"
    assert told["test_threads"][1].startswith("the test changed the number of intra-op threads to 2")
    assert "the results were wrong" in finished.output


@pytest.mark.long
def test_a_recording_says_at_once_what_can_be_paired_and_the_commands_that_it_names_help(project):
    project.write(".gitignore", "output-*\n__pycache__/\n")
    project.write("test_it.py", "def test_it(perf):\n    perf(sum, range(100_000))\n")
    record = ("--perf-update=all", *SHORT, "--perf-repeats=1")
    alone = " ".join(project.run(*record).output.split())
    assert "cannot be compared in paired rounds later" in alone
    for command in ("git init", "--perf-update=all", "git add .", "git commit"):
        assert command in alone

    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            cwd=project.root,
            check=True,
            capture_output=True,
        )

    git("init", "--quiet")
    before = " ".join(project.run(*record).output.split())
    assert "the recorded code is not committed yet (pytest.ini, test_it.py)" in before
    git("add", ".")
    git("commit", "--quiet", "-m", "Baselines")
    checked = project.run("--perf", *SHORT, "-v", "--perf-budget=20", "--perf-fail-on=invalid")
    assert "paired round" in checked.output
    assert "compared without paired rounds" not in checked.output
    after = project.run(*record)
    assert "not committed yet" not in after.output
    said = " ".join(after.output.split())
    assert (
        "Without paired rounds, 1 process cannot detect a slowdown of step_time: 4 are needed (--perf-repeats)." in said
    )


@pytest.mark.long
def test_code_that_changes_while_it_is_measured_is_no_commits(project):
    def git(*arguments):
        subprocess.run(["git", *arguments], cwd=project.root, check=True, capture_output=True)

    git("init", "--quiet")
    project.write(".gitignore", "output-*\nperf-report/\n")
    project.write("code_under_test.py", "def work():\n    return 1\n")
    project.write(
        "test_it.py",
        """
        import pathlib

        import code_under_test as code

        def test_edited(perf):
            perf(code.work)
            path = pathlib.Path(code.__file__)
            path.write_text(path.read_text().replace("1", "2"))
        """,
    )
    project.write("test_helped.py", "import helper\n\ndef test_helped(perf):\n    perf(helper.work)\n")
    git("add", "--all")
    project.write("notes.txt", "not for git, and used by no test")
    project.write("helper.py", "def work():\n    return 1\n")
    finished = project.run("--perf-update", *SHORT, "--perf-repeats=1", "--perf-json=run.json")
    _, test = json.loads((project.root / "run.json").read_text())["tests"]
    stored = json.loads(project.baseline("test_edited").read_bytes())

    assert finished.code == 0, finished.output
    assert "code" not in stored
    (told,) = [finding["message"] for finding in test["integrity"] if finding["code"] == "untied"]
    assert told.startswith("the code changed during the measurement (code_under_test.py); a baseline from")
    helped = json.loads(project.baseline("test_helped").read_bytes())
    assert helped["code"]["files"].keys() == {"helper.py", "pytest.ini", "test_helped.py"}
    said = " ".join(finished.output.split())
    assert "the recorded code is not committed yet (helper.py, pytest.ini, test_helped.py): commit the code " in said
    assert "(git add helper.py pytest.ini test_helped.py baselines; git commit)" in said
