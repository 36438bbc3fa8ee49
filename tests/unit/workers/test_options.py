"""What a worker inherits: options, environment."""

import fnmatch
import threading
import types
from pathlib import Path

import pytest

from pytest_perfdl.workers import job
from pytest_perfdl.workers.job import _DENIED_OF_PLUGINS, early_plugins, plugin_packages, worker_options
from pytest_perfdl.workers.process import environment

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


PRESENT = ("_pytest", "pytest_perfdl", "pytest_rerunfailures", "pytest_timeout", "xdist", "pytest_cov")


def options(packages=PRESENT, **more):
    return worker_options({**GIVEN, **more}, "/scratch/base", Path("/root"), Path("/root/pytest.ini"), packages)


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
        "confcutdir": "/root",
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
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1",
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
    remote = [name for name in found if name.startswith("TORCH") and "REMOTE" in name]
    assert len(remote) == 5
    assert {found[name] for name in remote} == {"0"}, "what other machines have compiled"
    assert not {"COVERAGE_PROCESS_START", "COV_CORE_SOURCE", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"} & found.keys()


@pytest.mark.parametrize(
    "name", ["perfdl", "perfdl_update", "keyword", "cov_source", "timeout", "reruns", "numprocesses"]
)
def test_what_a_worker_must_not_inherit(name):
    assert name not in options()


@pytest.mark.parametrize(
    "package, names",
    [
        ("allure_pytest", ["allure_report_dir", "clean_alluredir", "allure_labels"]),
        ("pytest_jsonreport", ["json_report", "json_report_file"]),
        ("pytest_csv", ["csv_path"]),
        ("pytest_html", ["htmlpath"]),
        ("testmon", ["testmon", "testmon_forceselect"]),
        ("pytest_split", ["splits", "group", "store_durations"]),
        ("syrupy", ["update_snapshots"]),
    ],
)
def test_options_of_writing_plugins_are_left_out_where_the_plugin_is(package, names):
    given = dict.fromkeys(names, "given")
    assert not set(names) & options(packages=[package], **given).keys()
    assert options(packages=[], **given).items() >= given.items(), "an option of that name may be the project's own"


def test_options_that_tests_may_read_travel():
    given = {"ds": "settings", "browser": "firefox", "hypothesis_profile": "fast", "randomly_seed": 5, "data_dir": "d"}
    assert options(packages=["pytest_django", "pytest_randomly"], **given).items() >= given.items()


@pytest.mark.parametrize(
    "package", ["xdist", "pytest_rerunfailures", "pytest_timeout", "pytest_cov", "pytest_benchmark"]
)
def test_every_pattern_is_one_of_an_option_that_there_is(package, pytester, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    name = {"pytest_benchmark": "pytest_benchmark.plugin", "pytest_cov": "pytest_cov.plugin", "xdist": "xdist.plugin"}
    config = pytester.parseconfig(
        "-p", name.get(package, package), *(["-p", "xdist.looponfail"] * (package == "xdist"))
    )
    assert package in plugin_packages(config)
    for pattern in _DENIED_OF_PLUGINS[package]:
        assert fnmatch.filter(vars(config.option), pattern), pattern


def test_plugins_that_may_be_the_repository_s_own_are_not_loaded_early(pytester, monkeypatch):
    """By name: what is in the root folder or in `src`, and what was not installed from an index."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    plugins = [(types.ModuleType(name), None) for name in ("indexed.plugin", "local", "here.plugin", "src_here")]
    config = pytester.parseconfig()
    monkeypatch.setattr(config.pluginmanager, "list_plugin_distinfo", lambda: [*plugins, (object(), None)])
    monkeypatch.setattr(job, "from_an_index", lambda top: top != "local")
    pytester.mkpydir("here")
    pytester.mkdir("src")
    (pytester.path / "src/src_here.py").touch()
    assert early_plugins(config).modules == ("indexed.plugin",)


def test_conftest_files_above_the_project_are_not_a_workers():
    """pytest would look for them above an ini file that is /dev/null."""
    found = worker_options(GIVEN, "/scratch/base", Path("/root"), None)
    assert (found["inifilename"], found["confcutdir"]) == ("/dev/null", "/root")
    assert options(confcutdir="/above")["confcutdir"] == "/above"


def test_values_that_cannot_travel_are_told_if_they_were_given(monkeypatch):
    values = {"size": threading.Lock(), "kept": threading.Lock(), "small": 1, "made_by_a_plugin": threading.Lock()}
    defaults = {"size": None, "kept": values["kept"], "small": 0, "keyword": ""}
    actions = {f"--{name}": types.SimpleNamespace(dest=name, default=value) for name, value in defaults.items()}
    monkeypatch.setattr(job, "option_actions", lambda _: actions)
    config = types.SimpleNamespace(
        option=types.SimpleNamespace(**values, keyword=threading.Lock()),
        pluginmanager=types.SimpleNamespace(get_plugins=list),
    )
    assert job.left_behind(config) == ["--size"]
