"""`--perf-inject` on a real suite, and `perfdl qualify` around it: nothing here depends on how fast the machine is."""

from __future__ import annotations

import json
import os
import sys
import types

import pytest
from plugin.project import SHORT, Project, Running

from pytest_perfdl.plugin import SETTINGS
from pytest_perfdl.run import processes
from pytest_perfdl.run.collection import adopt
from pytest_perfdl.run.processes import Processes
from pytest_perfdl.run.revisions import Revisions
from pytest_perfdl.workers.checkout import Checkout

PAUSE_NS = 2_000_000
INJECTED = "every step was slowed down by 300 % on purpose (--perf-inject)"
SUITE = f"""
import time

PAUSE = {PAUSE_NS} / 1e9

def test_pauses(perf):
    perf(time.sleep, PAUSE, name="function")
    for pause in perf.steps([PAUSE], name="iterable"):
        time.sleep(pause)
    while perf.step(name="callback"):
        time.sleep(PAUSE)
"""


def settings_of(inner, *args):
    return inner.parseconfigure(*args).stash[SETTINGS]


@pytest.mark.parametrize("text, share", [("5", 0.05), ("2.5%", 0.025), ("300", 3.0)], ids=["5", "2.5", "300"])
def test_the_share(inner, text, share):
    assert settings_of(inner, "--perf", f"--perf-inject={text}").inject == share
    assert settings_of(inner, "--perf").inject == 0.0


@pytest.mark.parametrize(
    "args, message",
    [
        (["--perf-inject=fast"], "--perf-inject = 'fast': expected a percentage above 0, such as 5"),
        (["--perf-inject=0"], "--perf-inject = '0': expected"),
        (["--perf-inject=nan"], "--perf-inject = 'nan': expected"),
        (["--perf-inject=5", "--perf-update"], "cannot be recorded as a baseline: remove --perf-update"),
        (["--perf-inject=5", "--perf-isolate=none"], "--perf-inject needs fresh processes"),
        (["--perf-inject=5", "--pdb"], "--perf-inject needs fresh processes"),
    ],
    ids=["word", "zero", "nan", "update", "here", "debugger"],
)
def test_wrong_usage_is_one_line(inner, args, message):
    inner.makepyfile(SUITE)
    result = inner.runpytest_inprocess("--perf", *args)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if "ERROR" in line and message in line]
    assert "Traceback" not in result.stderr.str()
    assert not (inner.path / "baselines").exists()


def test_a_smoke_run_has_none(inner):
    inner.makepyfile(SUITE)
    result = inner.runpytest_inprocess("--perf-inject=300")

    assert result.ret == 0
    assert "on purpose" not in result.stdout.str()


@pytest.mark.parametrize(
    "args, checkout, side, share",
    [
        ((), False, "", 0.0),
        (("--perf-inject=5",), False, "", 0.05),
        (("--perf-inject=5",), True, "", 0.0),
        (("--perf-inject=5",), False, "head:", 0.05),
        (("--perf-inject=5",), False, "base:", 0.0),
        (("--perf-inject=5",), False, "base:loop", 0.0),
    ],
    ids=["off", "tree", "checkout", "head", "base", "named-base"],
)
def test_only_the_head_is_slowed_down(inner, monkeypatch, args, checkout, side, share):
    jobs = []
    monkeypatch.setattr(processes, "Worker", lambda job, **rest: jobs.append(job))
    inner.makepyfile(SUITE)
    config = inner.parseconfigure("--perf", *args)
    (item,) = inner.getitems(SUITE)
    (test,) = adopt([item], config.stash[SETTINGS])[0].values()
    settings = config.stash[SETTINGS]
    revisions = Revisions(config, settings, None, (test,))
    made = Processes(config, settings, revisions, folder=types.SimpleNamespace(path=inner.path))
    plain = adopt([item], settings_of(inner, "--perf"))[0][item.nodeid]
    made.start(test, None, checkout=Checkout(inner.path, inner.path / "other") if checkout else None, side=side)
    (job,) = jobs

    assert job.inject == share
    assert job.plan == plain.plan, "no baseline is outdated by it"


def run_file(project):
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    return test


@pytest.mark.long
def test_the_delay_is_in_every_kind_of_step_and_told(tmp_path):
    project = Project(tmp_path / "project")
    project.write("test_speed.py", SUITE)
    recorded = project.run("--perf-update", *SHORT, "--perf-repeats=1")
    assert recorded.code == 0, recorded.output
    before = project.baselines()
    limits = [f"--perf-limit={metric}:off" for metric in ("step_time", "block_time", "per_kernel")]
    done = project.run("--perf", *SHORT, "--perf-inject=300", "--perf-json=run.json", *limits)
    assert done.code == 0, done.output
    assert "every step is slowed down by 300 % on purpose" in done.line("perf: on")
    test = run_file(project)
    findings = {finding["code"]: finding for finding in test["integrity"]}

    assert test["verdict"] not in ("invalid", "outdated", "changed"), test["reason"]
    assert [finding["message"] for finding in test["integrity"] if finding["code"] == "injected"] == [
        f"{name}: {INJECTED}" for name in ("function", "iterable", "callback")
    ]
    for metric in test["metrics"].values():
        if metric["kind"] == "counted":
            assert metric["new"] == metric["base"]
    for call in test["record"]["calls"]:
        # A pause is never shorter than asked for, in the warm-up neither; what is stored has four digits.
        assert call["profiled_ns"][0] >= 4 * PAUSE_NS * 0.999
        if "contended" not in findings:
            assert call["metrics"]["block_time"]["values"][0] >= 4 * PAUSE_NS * 0.999
    assert project.baselines() == before


def qualify(project, *args):
    """Run `perfdl qualify` to its end."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PERFDL_"))}
    env = {
        **inherited,
        "COLUMNS": "120",
        "PYTEST_ADDOPTS": "-p perfdl",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return Running([sys.executable, "-m", "pytest_perfdl.cli", "qualify", *args], project.root, env).finish()


@pytest.mark.long
def test_a_campaign_runs_goes_on_and_is_shown_again(tmp_path):
    project = Project(tmp_path / "project", "perf_limits =", "    step_time:50%", "    block_time:50%")
    project.write("test_speed.py", "import time\n\ndef test_pause(perf):\n    perf(time.sleep, 0.002)\n")
    asked = ("--out=q.jsonl", "--effects=900", "-n=1", "-m=1", "test_speed.py", "--", *SHORT)
    unready = qualify(project, *asked)
    assert unready.code == 2
    assert "test_speed.py::test_pause has no baseline to compare with (missing: " in unready.lines[-1]
    assert "record baselines on this machine with `pytest --perf-update" in unready.lines[-1]
    assert not (project.root / "q.jsonl").exists()

    assert project.run("--perf-update", *SHORT, "--perf-repeats=2").code == 0
    report = (project.root / "perf-report" / "run.json").read_bytes()
    done = qualify(project, *asked)
    assert done.code == 0, done.output
    runs = [json.loads(line) for line in (project.root / "q.jsonl").read_text().splitlines()]
    assert [run["inject"] for run in runs] == [0.0, 9.0]
    (slowed,) = runs[1]["cases"]
    # Two stored repeats can prove nothing, so more than a suspicion there cannot be.
    assert (slowed["id"], slowed["verdict"]) == ("test_speed.py::test_pause", "suspect")
    assert slowed["metrics"]["step_time"]["effect"] > 0
    assert "False positives on unchanged code" in done.output
    assert "0 of 1 [0%, 98%]" in done.output
    assert (project.root / "perf-report" / "run.json").read_bytes() == report, "no report is mistaken for a real one"

    again = qualify(project, *asked)
    shown = qualify(project, "--out=q.jsonl", "--table")
    assert (again.code, shown.code) == (0, 0)
    assert again.output == shown.output
    assert done.output.endswith(shown.output)
