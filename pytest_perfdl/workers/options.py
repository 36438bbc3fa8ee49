"""Options of the orchestrating process for a worker's pytest, without those that would interrupt a measurement."""

from __future__ import annotations

import os
import pickle
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

_DENIED = frozenset(
    {
        # Ours: the worker is told by its job.
        "perfdl",
        "perfdl_update",
        "perfdl_against",
        "perfdl_budget",
        "perfdl_inject",
        "perfdl_skip_same",
        "perfdl_isolate",
        "perfdl_report",
        "perfdl_json",
        "perfdl_require",
        # Which tests run is decided already; a worker runs one.
        "file_or_dir",
        "keyword",
        "markexpr",
        "deselect",
        "lf",
        "last_failed_no_failures",
        "failedfirst",
        "newfirst",
        "stepwise",
        "stepwise_skip",
        "stepwise_reset",
        "maxfail",
        "continue_on_collection_errors",
        # What the orchestrating process writes, or removes: the cache is one for all.
        "log_file",
        "debug",
        "cacheclear",
        "junitprefix",
        "basetemp",
        "pastebin",
        # Debuggers need a terminal.
        "usepdb",
        "usepdb_cls",
        "trace",
        # Ends the process before it runs anything.
        "collectonly",
        "help",
        "version",
        "markers",
        "showfixtures",
        "show_fixtures_per_test",
        "cacheshow",
    }
)
"""Of pytest itself, and ours."""

_DENIED_OF_PLUGINS: Mapping[str, tuple[str, ...]] = {
    # These would run the test elsewhere, again or not at all, or cut it short, or trace it.
    "xdist": ("numprocesses", "maxprocesses", "dist", "distload", "tx", "px", "looponfail", "rsync*", "testrunuid"),
    "pytest_rerunfailures": ("reruns*", "force_reruns", "only_rerun", "rerun_*", "fail_on_flaky", "max_suite_reruns"),
    "pytest_timeout": ("timeout", "session_timeout"),
    "pytest_cov": ("cov_*", "no_cov*"),
    "testmon": ("testmon*", "tmnet", "no-testmon"),
    "pytest_picked": ("picked*", "parent_branch"),
    "pytest_shard": ("shard_id", "num_shards"),
    "pytest_memray": ("memray*",),
    "pytest_profiling": ("profile*", "pstats_dir"),
    # These write a report or a record of the session, send it, or remove an earlier one.
    "allure_pytest": ("allure_*", "clean_alluredir"),
    "pytest_benchmark": ("benchmark_json", "benchmark_*save*", "benchmark_histogram", "benchmark_cprofile_dump"),
    "pytest_csv": ("csv_path",),
    "pytest_excel": ("excelpath",),
    "pytest_html": ("htmlpath",),
    "pytest_jsonreport": ("json_report*",),
    "pytest_md_report": ("md_report*",),
    "pytest_monitor": ("mtr_*",),
    "pytest_reportlog": ("report_log*",),
    "pytest_reportportal": ("rp_*",),
    "pytest_split": ("splits", "group", "store_durations", "clean_durations"),
    "pytest_tap": ("tap*",),
    "syrupy": ("update_snapshots", "update_new_snapshots_only"),
}
"""Patterns of the options of other plugins, by the package that the plugin is in.

Only while that plugin is there: a project may have an option `--timeout` or `--group` of its own, which its tests read.
All others travel: tests read those of plugins too (`--ds`, `--browser`, `--hypothesis-profile`), and nobody says which.
"""


def worker_options(
    options: Mapping[str, Any],
    basetemp: str,
    rootdir: Path,
    inifile: Path | None,
    packages: Collection[str] = (),
) -> dict[str, Any]:
    """The options for `pytest.Config.fromdictargs` in a worker.

    Options that cannot travel (an open file, say) belong to plugins that write here, and are left out. The root
    directory, the ini file and the folder above which no conftest file counts are given, since pytest would look for
    them from the one test file on.

    Parameters
    ----------
    packages
        The plugins that are there: see `plugin_packages`.
    """
    patterns = [pattern for package in packages for pattern in _DENIED_OF_PLUGINS.get(package, ())]
    chosen = {
        name: value
        for name, value in options.items()
        if name not in _DENIED and not any(fnmatchcase(name, pattern) for pattern in patterns) and _travels(value)
    }
    plugins = [plugin for plugin in chosen.get("plugins", []) if plugin != "terminal"]
    chosen["plugins"] = [*plugins, "no:terminal"]
    chosen["basetemp"] = basetemp
    if chosen.get("xmlpath"):
        # Nobody reads this one, but fixtures that record properties warn when there is none.
        chosen["xmlpath"] = f"{basetemp}.xml"
    chosen["rootdir"] = str(rootdir)
    chosen["inifilename"] = str(inifile or os.devnull)
    chosen["confcutdir"] = chosen.get("confcutdir") or str(rootdir if inifile is None else inifile.parent)
    return chosen


def plugin_packages(config: pytest.Config) -> frozenset[str]:
    """Names of the packages, or single modules, that the plugins of a session are in."""
    plugins = config.pluginmanager.get_plugins()
    names = (getattr(plugin, "__name__", None) or type(plugin).__module__ for plugin in plugins)
    return frozenset(name.partition(".")[0] for name in names)


def exempt_from_timeout(item: pytest.Item) -> None:
    """Keep pytest-timeout from cutting a measurement short: --perf-timeout rules for perf tests."""
    if item.config.pluginmanager.has_plugin("timeout"):
        item.add_marker(pytest.mark.timeout(0), append=False)


def _travels(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
