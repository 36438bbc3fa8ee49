"""Whatever measuring changes in a measured process is on the page that says what it can hide."""

import re
from pathlib import Path

import pytest

from pytest_perfdl.workers.process import environment

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "what-measuring-changes.md").read_text(encoding="utf-8")
SETTINGS = re.compile(
    r"\b(?:gc\.(?:collect|freeze|unfreeze|disable|enable|set_threshold|set_debug|callbacks)(?=[(.])"
    r"|torch\.(?:set_\w+|manual_seed|use_deterministic_algorithms|cuda\.set_\w+|backends\.[\w.]+(?= = ))"
    r"|(?:numpy\.)?random\.seed"
    r"|os\.(?:sched_set\w+|nice|setpriority|dup2|setsid|umask|chdir|environ(?=\[\w+\] = )|putenv)"
    r"|sys\.(?:addaudithook|set\w+|meta_path(?=\.insert))"
    r"|threading\.set\w+|faulthandler\.(?:register|enable)|signal\.(?:signal|setitimer|alarm)(?=\()"
    r"|prctl|resource\.setrlimit|warnings\.simplefilter|multiprocessing\.set_start_method)\b"
)
NOT_MEASURED = frozenset({"interpreter.py", "checkout.py", "replay.py", "injected_delay.py"})
"""These run in processes of their own, or on purpose slow a step down."""


def changed():
    """Settings by name, and the files of the package that change them in a measured process."""
    files = [ROOT / "pytest_perfdl" / "machine" / "state.py"]
    files += [
        path for name in ("measure", "workers", "fixture") for path in (ROOT / "pytest_perfdl" / name).glob("*.py")
    ]
    for path in files:
        if path.name not in NOT_MEASURED:
            for found in SETTINGS.findall(path.read_text(encoding="utf-8")):
                yield found, path.name


def test_every_setting_that_the_code_changes_is_listed():
    found = dict(changed())
    assert {"gc.collect", "torch.set_num_threads", "os.sched_setaffinity", "random.seed", "prctl"} <= found.keys()
    assert [name for name in found if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("threads", [1, 3])
def test_every_environment_variable_of_a_worker_is_listed(threads, monkeypatch):
    removed = {
        "PYTEST_ADDOPTS": "-q",
        "COVERAGE_PROCESS_START": "x",
        "COV_CORE_SOURCE": "x",
        "PYTEST_XDIST_WORKER": "gw0",
    }
    given = {"MINE": "1", "MALLOC_TOP_PAD_": "0", "OMP_NUM_THREADS": "7"}
    monkeypatch.setattr("os.environ", given | removed)
    own = environment(threads)
    added = {name for name, value in own.items() if given.get(name) != value}
    assert own["MINE"] == "1"
    assert "PYTHONHASHSEED" in added
    assert [name for name in added if not re.search(rf"`{name}(?:=\w+)?`", PAGE)] == []
    assert removed.keys() - own.keys() == removed.keys()
