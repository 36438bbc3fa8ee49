"""Every command-line option and ini key, and their registration with pytest.

`OPTIONS` is the one table: the command line, the ini keys and the documentation are generated from it; `settings` reads
the values.
Every command-line option defaults to `None`, to distinguish "not given" from "given with the default value".
Every name has two spellings, `--perf-steps` and `--perfdl-steps`; `short_names` explains why, and which one applies.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pytest_perfdl.config import short_names
from pytest_perfdl.config.short_names import long_name

UpdateMode = Literal["new", "changed", "all", "append"]
UPDATE_MODES: tuple[UpdateMode, ...] = ("new", "changed", "all", "append")

RECORDING_REPEATS = 10
CHECKING_REPEATS = 1
BUDGET_SECONDS = 300.0
SHARED_BUDGET_SECONDS = 30.0
"""Of tests of a file that share processes, together; more where a few rounds of all of them take longer."""
FAILS = "invalid,regressed,missing,outdated,suspect-in-every-round"
"""Verdicts that fail a test by default."""
WAIVERS = "perf_waivers.toml"
"""Path of the waivers."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its flag and its ini key, one of them at least, and what it means."""

    flag: str
    help: str
    ini: str | None = None
    ini_type: Literal["string", "bool", "linelist"] = "string"
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    action: Literal["store", "append", "store_true", "mode"] = "store"
    """`mode` is a flag that accepts one of its choices after an equals sign."""
    default: str = ""
    """The built-in default, as text."""
    brief: str = ""
    """The help of the ini key in one short line, as pytest prints every ini key; empty if `help` is short."""
    level: Literal["basic", "advanced"] = "advanced"
    """Most projects need `basic` options alone; `pytest --help` does not list the others."""

    @property
    def dest(self) -> str:
        """Attribute of `config.option`."""
        return _dest(self.flag)

    @property
    def shown(self) -> str:
        """The option with its value, as it is written on a command line."""
        if self.action == "mode":
            return f"{self.flag}[={self.metavar}]"
        return f"{self.flag} {self.metavar}" if self.metavar else self.flag


OPTIONS: tuple[Option, ...] = (
    Option(
        "--perf",
        "measure perf tests and compare the results with baselines; without this option, perf tests run once and are "
        "not measured",
        ini="perf",
        ini_type="bool",
        action="store_true",
        default="false",
        brief="measure perf tests",
        level="basic",
    ),
    Option("--no-perf", "do not measure, even if the ini file sets perf = true", action="store_true", default="false"),
    Option(
        "--perf-update",
        "record baselines (implies --perf): `changed` (the default mode) records tests without a baseline or with a "
        "changed result, `new` only tests without a baseline, `all` every test, and `append` adds another recording "
        "to existing baselines",
        metavar="MODE",
        choices=UPDATE_MODES,
        action="mode",
        default="off",
        level="basic",
    ),
    Option(
        "--perf-note",
        "with --perf-update: why the baselines change, one line that is kept in every baseline that is written and "
        "shown with it",
        metavar="TEXT",
        default="none",
        level="basic",
    ),
    Option(
        "--perf-limit",
        "how much worse a metric may get, such as step_time:3%, kernel_time:5%+20us, launches:0 or METRIC:off "
        "(repeatable)",
        ini="perf_limits",
        ini_type="linelist",
        metavar="METRIC:SPEC",
        action="append",
        default="step_time:3%, block_time:3%, peak_memory:2%+1MiB; times without paired rounds: at least 10%",
        brief="how much worse metrics may get: step_time:3%",
        level="basic",
    ),
    Option(
        "--perf-fail-on",
        "verdicts that fail a test, comma-separated, or `all` (every verdict that fails or warns, except `waived`)",
        ini="perf_fail_on",
        metavar="LIST",
        default=FAILS,
        brief="verdicts that fail a test",
        level="basic",
    ),
    Option(
        "--perf-require",
        "fail the run if fewer than N tests were compared with a baseline or another commit",
        ini="perf_require",
        metavar="N",
        default="0",
        brief="minimum number of compared tests",
        level="basic",
    ),
    Option(
        "--perf-shard",
        "measure only the I-th of N parts of the selected perf tests, of about equal duration; other tests run in "
        "every part (see `perfdl merge`)",
        metavar="I/N",
        default="all perf tests",
        level="basic",
    ),
    Option(
        "--perf-case",
        "of tables (`perf.table`), measure only the cases that meet these conditions on their axes, joined by commas: "
        "`dtype=float16,tokens>=4096`, with `=`, `!=`, `<`, `<=`, `>` or `>=`; not with `--perf-update`",
        metavar="CONDITIONS",
        default="all cases",
    ),
    Option(
        "--perf-benchmarks",
        "measure tests with the fixture `benchmark` of pytest-benchmark, which need not be installed, as perf tests; "
        "`marked` in the ini file: and those with the marker `benchmark` alone, whose whole test is the step",
        ini="perf_benchmarks",
        action="store_true",
        default="false",
        brief="measure pytest-benchmark's tests: true, marked",
    ),
    Option(
        "--perf-dir",
        "directory of the baselines, relative to the root directory",
        ini="perf_dir",
        metavar="DIR",
        default="baselines",
        brief="directory of the baselines",
        level="basic",
    ),
    Option(
        "--perf-report",
        "directory of the report, relative to the root directory",
        ini="perf_report",
        metavar="DIR",
        default="perf-report",
        brief="directory of the report",
        level="basic",
    ),
    Option("--perf-json", "also write the results as JSON to this file", metavar="FILE", default="none", level="basic"),
    Option(
        "--perf-json-benchmark",
        "also write the times to this file in the JSON of pytest-benchmark, for `pytest-benchmark compare` and other "
        "programs that read such files",
        metavar="FILE",
        default="none",
    ),
    Option(
        "--perf-traces",
        "tests whose traces of the baseline and of the current code are included in the report",
        ini="perf_traces",
        choices=("regressed", "all", "none"),
        default="regressed",
        brief="tests whose traces are in the report",
    ),
    Option("--perf-warmup", "minimum number of warm-up steps", ini="perf_warmup", metavar="N", default="15"),
    Option("--perf-steps", "number of timed steps per process", ini="perf_steps", metavar="N", default="40"),
    Option(
        "--perf-repeats",
        "number of fresh processes that measure a test",
        ini="perf_repeats",
        metavar="N",
        default=f"{RECORDING_REPEATS} to record, {CHECKING_REPEATS} to compare",
    ),
    Option(
        "--perf-threads",
        "number of intra-op threads in a measured process",
        ini="perf_threads",
        metavar="N",
        default="1",
    ),
    Option(
        "--perf-timeout",
        "time limit of one measured process, in seconds",
        ini="perf_timeout",
        metavar="SECONDS",
        default="600",
        brief="time limit of a measured process, in seconds",
        level="basic",
    ),
    Option(
        "--perf-launch",
        "command that starts the launcher of the ranks of tests with `ranks=`, such as `srun --nodes=2` on a cluster; "
        "the command line of `torch.distributed.run` follows it",
        ini="perf_launch",
        metavar="COMMAND",
        default="none",
        brief="command that starts the launcher of ranks",
    ),
    Option(
        "--perf-nodes",
        "number of machines that the ranks of a test are divided among; --perf-launch must start one launcher on each",
        ini="perf_nodes",
        metavar="N",
        default="1",
        brief="machines that the ranks are divided among",
    ),
    Option(
        "--perf-rendezvous",
        "address at which the launchers of several machines meet: a host of the job and a free port",
        ini="perf_rendezvous",
        metavar="HOST:PORT",
        default="a free port of this machine",
        brief="HOST:PORT where several launchers meet",
    ),
    Option(
        "--perf-rank-timeout",
        "end a test with `ranks=` if none of its ranks finishes a step for so many seconds; outside of the steps, "
        "ranks have a minute at least",
        ini="perf_rank_timeout",
        metavar="SECONDS",
        default="120",
        brief="time limit of a step of ranks, in seconds",
    ),
    Option(
        "--perf-against",
        "compare with this git revision instead of recorded baselines; the revision and the working tree are "
        "measured in paired rounds on this machine",
        metavar="REF",
        default="baselines",
        level="basic",
    ),
    Option(
        "--perf-against-python",
        "run the other side with this Python interpreter (or virtual environment): compares two environments, and with "
        "--perf-against also two revisions",
        ini="perf_against_python",
        metavar="PATH",
        default="this interpreter",
        brief="Python interpreter of the other side",
    ),
    Option(
        "--perf-budget",
        "time limit of the paired rounds of one test, in seconds; doubled if the test looks slower; for all tests of "
        "pytest-benchmark in a file 30 by default, or more if a few rounds take longer",
        ini="perf_budget",
        metavar="SECONDS",
        default=f"{BUDGET_SECONDS:g}",
        brief="time limit of the paired rounds of a test",
        level="basic",
    ),
    Option(
        "--perf-resolution",
        "if the time budget ends without a verdict, report `unchanged` if the interval excludes a slowdown above "
        "this percentage, such as 6%",
        ini="perf_resolution",
        metavar="PERCENT",
        default="twice the limit",
        brief="slowdown to exclude when time is up, in percent",
    ),
    Option(
        "--perf-pin",
        "`auto` pins both processes of a paired round to the same CPU, chosen at random for each round (Linux only; "
        "steps with one thread, no GPU and no child processes); `off` does not pin",
        ini="perf_pin",
        choices=("auto", "off"),
        default="auto",
        brief="pin paired processes to one CPU: auto, off",
    ),
    Option(
        "--perf-device-lock",
        "`auto` measures a test only while no other run of pytest-perfdl measures on the same device, or without a GPU "
        "on the same machine, with lock files in `/tmp`; the absolute path of another folder puts the lock files "
        "there; `off` does not wait",
        ini="perf_device_lock",
        metavar="MODE",
        default="auto",
        brief="one run measures at a time: auto, off, a folder",
    ),
    Option(
        "--perf-calibrate",
        "`auto` measures the peak rates of this machine (about 20 s) when its first baseline is recorded, and writes "
        "them to `baselines/<machine ID>/machine.json`; utilization is relative to peak rates; `off` does not "
        "measure peak rates: run `perfdl constants` instead",
        ini="perf_calibrate",
        choices=("auto", "off"),
        default="auto",
        brief="measure peak rates when recording: auto, off",
    ),
    Option(
        "--perf-memory",
        "which tests get a breakdown of peak memory by tensor, from one more process per side: `changed` (tests "
        "whose peak memory differs from the baseline or whose memory grows), `all` tests, or `off`",
        ini="perf_memory",
        choices=("changed", "all", "off"),
        default="changed",
        brief="breakdowns of peak memory: changed, all, off",
    ),
    Option(
        "--perf-start",
        "`auto` forks the processes that measure a test from a process that imported its third-party modules, unless "
        "forking could change how the test runs; `fresh` starts new processes",
        ini="perf_start",
        choices=("auto", "fresh"),
        default="auto",
        brief="how paired processes start: auto, fresh",
    ),
    Option(
        "--perf-skip-same",
        "do not measure a test whose files in the repository, versions of packages, Python, torch, driver and threads "
        "are the same as in its baseline; report the test as unchanged (`same code`)",
        ini="perf_skip_same",
        ini_type="bool",
        action="store_true",
        default="false",
        brief="do not measure unchanged code",
    ),
    Option(
        "--perf-inject",
        "slow down the steps of the working tree by this percentage, to check that a slowdown is detected (see "
        "`perfdl qualify`)",
        metavar="PERCENT",
        default="none",
    ),
    Option(
        "--perf-isolate",
        "`process` measures in fresh processes; `none` measures in pytest's process, for debugging, without comparing "
        "or recording",
        choices=("process", "none"),
        default="process",
    ),
    Option(
        "--perf-github",
        "`auto` writes GitHub annotations and a step summary if GITHUB_ACTIONS is true",
        choices=("auto", "off"),
        default="auto",
    ),
)


INI_ONLY: tuple[Option, ...] = (
    Option("", "name of the marker for perf tests", ini="perf_marker", default="perf"),
    Option(
        "",
        "calls of the function in one timed step: a number, or `auto` for at least 100 us (times are per call)",
        ini="perf_loops",
        default="1",
        brief="calls in one timed step: a number, auto",
    ),
    Option(
        "",
        "whether the tests of pytest-benchmark in a file are measured in the same processes, as cases of one test",
        ini="perf_shared",
        ini_type="bool",
        default="true",
        brief="pytest-benchmark's tests of a file share processes",
    ),
    Option(
        "",
        "additional context fields that must be equal before times are compared",
        ini="perf_key_extra",
        ini_type="linelist",
        brief="more context that must be equal for times",
    ),
    Option(
        "",
        "command that builds the baseline commit, run in its checkout",
        ini="perf_against_setup",
        brief="command that builds the baseline commit",
    ),
    Option(
        "",
        "whose definition of a test both sides of --perf-against run: the working tree's (head), the commit's (base)",
        ini="perf_against_tests",
        default="head",
        brief="whose tests both sides run: head, base",
    ),
    Option(
        "",
        "path of the waivers, relative to the root directory, or `off`",
        ini="perf_waivers",
        default=WAIVERS,
        brief="path of the waivers, or off",
    ),
)
"""Settings that only the ini file has."""


FLAGS = tuple(option.flag for option in OPTIONS)
"""Short spellings of all options."""


class _Mode(argparse.Action):
    """An option that is a flag, and takes a mode only after an equals sign.

    An optional value would consume the path after it. Here `--perfdl-update` and `--perfdl-update=all` are separate
    option strings, which argparse matches whole before it looks for an equals sign.
    """

    def __init__(self, option_strings: list[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, _parser: object, namespace: object, _values: object, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, (option_string or "").partition("=")[2] or "changed")


def register(parser: pytest.Parser, *, in_short: bool) -> None:
    """Add every option and ini key to pytest in the long spelling.

    With `in_short` also in the short one, if no other plugin defines it: needed when the plugin is loaded too late to
    replace arguments (`short_names`).
    """
    taken = short_names.registered(parser)
    group = parser.getgroup(
        "perfdl",
        "performance regression tests (pytest-perfdl); each --perf... option is short for --perfdl..., unless "
        "another plugin defines the short option; advanced options have the names of the ini keys below, such as "
        "--perfdl-steps for perfdl_steps",
    )
    for option in OPTIONS:
        # argparse formats its help texts with %, pytest prints those of ini keys as they are.
        flag = long_name(option.flag)
        text = f"({option.flag}) {option.help} (default: {option.default})".replace("%", "%%")
        shown = text if option.level == "basic" else argparse.SUPPRESS
        kwargs: dict[str, Any] = {"dest": option.dest, "default": None, "help": shown}
        flags = [flag, option.flag] if in_short and option.flag not in taken else [flag]
        if option.action == "mode":
            flags += [f"{each}={choice}" for choice in option.choices or () for each in flags]
            kwargs |= {"action": _Mode}
        elif option.action == "store_true":
            kwargs |= {"action": "store_true"}
        else:
            kwargs |= {"action": option.action, "metavar": option.metavar or f"{{{','.join(option.choices or ())}}}"}
        group.addoption(*flags, **kwargs)
    for name, kind, text in ini_keys():
        parser.addini(long_name(name), text, type=kind, default=None)
    if in_short:
        register_short_ini_keys(parser)


def register_short_ini_keys(parser: pytest.Parser) -> None:
    """Add the short ini keys that no other plugin has registered."""
    for name, kind, _ in ini_keys():
        short_names.add_ini(parser, name, f"short for {long_name(name)}", kind)


def ini_keys() -> list[tuple[str, Literal["string", "bool", "linelist"], str]]:
    """Every ini key in its short spelling, with its type and what it means in one short line."""
    return [(each.ini, each.ini_type, each.brief or each.help) for each in (*OPTIONS, *INI_ONLY) if each.ini]


INI_KEYS = frozenset(name for name, *_ in ini_keys())
"""All of them."""


def option_value(config: pytest.Config, flag: str) -> Any:
    """The value on the command line; `None` if the option is not given, or there is none."""
    return config.getoption(_dest(flag), None)


def _dest(flag: str) -> str:
    return long_name(flag).lstrip("-").replace("-", "_")
