"""What a worker inherits: options, environment."""

import threading
from pathlib import Path

import pytest

from pytest_perfdl.isolate.options import worker_options
from pytest_perfdl.isolate.process import environment

GIVEN = {
    "verbose": 1,
    "capture": "sys",
    "tbstyle": "short",
    "override_ini": ["x=y"],
    "pythonwarnings": ["error"],
    "plugins": ["perfdl", "terminal", "no:cacheprovider"],
    "perfdl": True,
    "perfdl_update": "all",
    "keyword": "step",
    "markexpr": "perf",
    "file_or_dir": ["tests"],
    "maxfail": 1,
    "reruns": 2,
    "timeout": 1.0,
    "numprocesses": 4,
    "cov_source": ["src"],
    "usepdb": True,
    "log_file": "log.txt",
    "lock": threading.Lock(),
}


def options(**more):
    return worker_options({**GIVEN, **more}, "/scratch/base", Path("/root"), Path("/root/pytest.ini"))


def test_what_a_worker_inherits():
    assert options() == {
        "verbose": 1,
        "capture": "sys",
        "tbstyle": "short",
        "override_ini": ["x=y"],
        "pythonwarnings": ["error"],
        "plugins": ["perfdl", "no:cacheprovider", "no:terminal"],
        "basetemp": "/scratch/base",
        "rootdir": "/root",
        "inifilename": "/root/pytest.ini",
    }
    assert GIVEN["plugins"][1] == "terminal"


def test_a_junit_file_of_its_own():
    assert options(xmlpath="junit.xml")["xmlpath"] == "/scratch/base.xml"


def test_no_ini_file_is_no_reason_to_look_for_one():
    assert worker_options({}, "/base", Path("/root"), None)["inifilename"] == "/dev/null"


def test_the_environment_of_a_worker(monkeypatch):
    for name, value in {
        "OF_THE_USER": "kept",
        "OMP_NUM_THREADS": "8",
        "PYTHONHASHSEED": "random",
        "COVERAGE_PROCESS_START": "x",
        "COV_CORE_SOURCE": "x",
        "PYTEST_ADDOPTS": "-x",
        "PYTEST_XDIST_WORKER": "gw0",
    }.items():
        monkeypatch.setenv(name, value)
    found = environment(3)

    assert found["OF_THE_USER"] == "kept"
    assert [found[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")] == ["3"] * 3
    assert found["PYTHONHASHSEED"] == "0"
    assert found["PYTEST_PERFDL_WORKER"] == "1"
    assert int(found["MALLOC_TRIM_THRESHOLD_"]) > 2**30
    assert not {"COVERAGE_PROCESS_START", "COV_CORE_SOURCE", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"} & found.keys()


@pytest.mark.parametrize(
    "name", ["perfdl", "perfdl_update", "keyword", "cov_source", "timeout", "reruns", "numprocesses"]
)
def test_what_a_worker_must_not_inherit(name):
    assert name not in options()
