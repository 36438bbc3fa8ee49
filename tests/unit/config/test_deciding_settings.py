"""Which settings two runs must have in common to be comparable."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from pytest_perfdl.config.settings import Settings
from pytest_perfdl.model.launch import Launch
from pytest_perfdl.plugin import SETTINGS

OTHERS = {
    "update": "all",
    "isolate": "none",
    "shared": False,
    "limits": ((), ("step_time:500%",)),
    "fail_on": "all",
    "warmup": 3,
    "steps": 3,
    "repeats": 3,
    "threads": 3,
    "ini_shape": {"threads": 3},
    "loops": "auto",
    "launch": Launch(nodes=2),
    "against_tests": "own",
    "budget": 1.0,
    "resolution": 0.5,
    "pin": "off",
    "start": "fresh",
    "inject": 0.05,
    "key_extra": ("driver",),
    "waivers": "off",
}
REST = frozenset(
    {
        *("enabled", "note", "markers", "report", "json", "traces", "github", "shard", "require", "timeout"),
        *("benchmark_json", "benchmarks", "cases"),
        "shared_budget",  # Of the ini key of `budget`, which decides.
        *("calibrate", "memory", "device_lock", "skip_same", "verbosity", "clashes"),
        # What run files tell otherwise: the folder, the commit of the other side; its setup is the commit's.
        *("folder", "against", "against_python", "against_setup"),
    }
)


@pytest.fixture
def settings(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def of(*args, ini=""):
        pytester.makeini(f"[pytest]\n{ini}")
        return pytester.parseconfigure("-pperfdl", "--perf", *args).stash[SETTINGS]

    return of


@pytest.mark.long
def test_every_setting_decides_or_is_named_as_one_that_does_not(settings):
    found = settings()
    assert {*OTHERS, *REST} == {each.name for each in fields(Settings)}
    for name, value in OTHERS.items():
        assert replace(found, **{name: value}).deciding != found.deciding, name
    assert replace(found, report=Path("/elsewhere"), timeout=1.0).deciding == found.deciding


@pytest.mark.long
def test_a_limit_is_named_where_it_was_given(settings):
    found = settings("--perf-limit=step_time:9%", "--perf-limit=ops:0", ini="perf_limits = step_time:5%").deciding
    assert (found["perf_limits"], found["--perf-limit"]) == ("step_time:5%", "step_time:9%, ops:0")
    assert "--perf-limit" not in settings(ini="perf_limits = step_time:5%").deciding
