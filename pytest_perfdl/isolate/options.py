"""What a worker's pytest gets of the orchestrating process's options, and what must not cut a measurement short."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
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
        "perfdl_isolate",
        "perfdl_report",
        "perfdl_json",
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
        # Files that the orchestrating process writes.
        "log_file",
        "report_log",
        "htmlpath",
        "json_report_file",
        "junitprefix",
        "basetemp",
        "pastebin",
        "benchmark_json",
        "benchmark_autosave",
        "benchmark_save",
        "resultlog",
        # Debuggers need a terminal.
        "usepdb",
        "usepdb_cls",
        "trace",
        # Other plugins that would run the test elsewhere, again, or cut it short, or trace it.
        "numprocesses",
        "maxprocesses",
        "dist",
        "tx",
        "px",
        "looponfail",
        "rsyncdir",
        "testrunuid",
        "distload",
        "reruns",
        "reruns_delay",
        "only_rerun",
        "rerun_except",
        "fail_on_flaky",
        "timeout",
        "session_timeout",
        "cov_source",
        "cov_report",
        "cov_config",
        "cov_fail_under",
        "cov_append",
        "cov_branch",
        "cov_context",
        "no_cov",
        "cov_reset",
        # Ends the process before it runs anything.
        "collectonly",
        "help",
        "version",
        "markers",
        "show_fixtures",
        "show_fixtures_per_test",
        "cacheshow",
    }
)


def worker_options(options: Mapping[str, Any], basetemp: str, rootdir: Path, inifile: Path | None) -> dict[str, Any]:
    """The options for `pytest.Config.fromdictargs` in a worker.

    Options that cannot travel (an open file, say) belong to plugins that write here, and are left out. The
    root directory and ini file are given, since pytest would look for them from the one test file on.
    """
    chosen = {name: value for name, value in options.items() if name not in _DENIED and _travels(value)}
    plugins = [plugin for plugin in chosen.get("plugins", []) if plugin != "terminal"]
    chosen["plugins"] = [*plugins, "no:terminal"]
    chosen["basetemp"] = basetemp
    if chosen.get("xmlpath"):
        # Nobody reads this one, but fixtures that record properties warn when there is none.
        chosen["xmlpath"] = f"{basetemp}.xml"
    chosen["rootdir"] = str(rootdir)
    chosen["inifilename"] = str(inifile or os.devnull)
    return chosen


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
