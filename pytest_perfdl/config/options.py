"""Every option of the command line and every ini key, and how pytest is told of them.

`OPTIONS` is the one table: the command line, the ini keys and the documentation are all made from it; `settings` reads
what was given.
Every command-line option defaults to `None`, so that "not given" can be told from "given as the default".
Everything has two spellings, `--perf-steps` and `--perfdl-steps`; why, and which holds, is told in `short_names`.
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
FAILS = "invalid,regressed,missing,outdated,suspect-in-every-round"
"""What fails a test by default."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its flag, its ini key (if it has one) and what it means."""

    flag: str
    help: str
    ini: str | None = None
    ini_type: Literal["string", "bool", "linelist"] = "string"
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    action: Literal["store", "append", "store_true", "mode"] = "store"
    """`mode` is a flag by itself, and takes one of its choices after an equals sign only."""
    default: str = ""
    """The built-in default, as text."""

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
        "measure and judge perf tests; without it they run once, as smoke tests",
        ini="perf",
        ini_type="bool",
        action="store_true",
        default="false",
    ),
    Option("--no-perf", "do not measure, whatever the ini file says", action="store_true", default="false"),
    Option(
        "--perf-update",
        "write baselines (implies --perf): where the verdict calls for it (`changed`, which is meant when no mode is "
        "given), only where there is none (`new`), everywhere (`all`), or add repeats from another occasion (`append`)",
        metavar="MODE",
        choices=UPDATE_MODES,
        action="mode",
        default="off",
    ),
    Option(
        "--perf-limit",
        "how much a metric may worsen, such as step_time:3%, kernel_time:5%+20us, launches:0 or METRIC:off "
        "(repeatable)",
        ini="perf_limits",
        ini_type="linelist",
        metavar="METRIC:SPEC",
        action="append",
        default="step_time:3%, block_time:3%, peak_memory:2%+1MiB; at least 10% for times without a pair",
    ),
    Option(
        "--perf-fail-on",
        "verdicts that fail a test, comma-separated, or `all`",
        ini="perf_fail_on",
        metavar="LIST",
        default=FAILS,
    ),
    Option(
        "--perf-require",
        "fail the run when fewer tests than this were held against a baseline or another revision",
        ini="perf_require",
        metavar="N",
        default="0",
    ),
    Option(
        "--perf-dir",
        "folder of the baselines, relative to the root directory",
        ini="perf_dir",
        metavar="DIR",
        default="baselines",
    ),
    Option(
        "--perf-report",
        "folder of the report, relative to the root directory",
        ini="perf_report",
        metavar="DIR",
        default="perf-report",
    ),
    Option("--perf-json", "also write the run as JSON to this file", metavar="FILE", default="none"),
    Option(
        "--perf-traces",
        "which tests get a Chrome trace of baseline and current",
        ini="perf_traces",
        choices=("regressed", "all", "none"),
        default="regressed",
    ),
    Option("--perf-warmup", "least number of warm-up steps", ini="perf_warmup", metavar="N", default="15"),
    Option("--perf-steps", "timed steps in a repeat", ini="perf_steps", metavar="N", default="40"),
    Option(
        "--perf-repeats",
        "fresh processes a test is measured in",
        ini="perf_repeats",
        metavar="N",
        default=f"{RECORDING_REPEATS} when recording, {CHECKING_REPEATS} when checking",
    ),
    Option("--perf-threads", "intra-op threads of a measured process", ini="perf_threads", metavar="N", default="1"),
    Option("--perf-timeout", "seconds that one repeat may take", ini="perf_timeout", metavar="SECONDS", default="600"),
    Option(
        "--perf-against",
        "measure against this git revision instead of the baselines' commits: its tests and the working tree's in "
        "turns, on this machine",
        metavar="REF",
        default="baselines",
    ),
    Option(
        "--perf-budget",
        "seconds that the rounds of one test may take; twice as many where it looks slower",
        ini="perf_budget",
        metavar="SECONDS",
        default=f"{BUDGET_SECONDS:g}",
    ),
    Option(
        "--perf-resolution",
        "how much slower a test may be and still be called unchanged where its budget ended, such as 6%",
        ini="perf_resolution",
        metavar="PERCENT",
        default="twice its limit",
    ),
    Option(
        "--perf-pin",
        "`auto` binds both processes of a round to one processor, drawn anew for each round, while they warm up and "
        "are timed (Linux; one thread, no device, no processes or threads of the steps' own); `off` leaves them free",
        ini="perf_pin",
        choices=("auto", "off"),
        default="auto",
    ),
    Option(
        "--perf-calibrate",
        "`auto` measures the limits of this machine, in some 20 s, when its first baseline is written "
        "(`baselines/<key>/machine.json`, which utilization is held against); `off` leaves that to `perfdl constants`",
        ini="perf_calibrate",
        choices=("auto", "off"),
        default="auto",
    ),
    Option(
        "--perf-memory",
        "whose the memory at the peak of a step is, which takes one more process on each side: `changed` says it where "
        "the peak differs or memory grows, `all` of every test, `off` of none",
        ini="perf_memory",
        choices=("changed", "all", "off"),
        default="changed",
    ),
    Option(
        "--perf-start",
        "`auto` forks both processes of a round from one that has imported the test's third-party modules, where that "
        "is the same as starting them; `fresh` starts them",
        ini="perf_start",
        choices=("auto", "fresh"),
        default="auto",
    ),
    Option(
        "--perf-skip-same",
        "do not measure tests of which no file that they load or read, no package and nothing of the environment "
        "differs from the baseline's: unchanged, `same code`",
        ini="perf_skip_same",
        ini_type="bool",
        action="store_true",
        default="false",
    ),
    Option(
        "--perf-inject",
        "slow the measured steps of the working tree down by a known share, to see whether that is found; see perfdl "
        "qualify",
        metavar="PERCENT",
        default="none",
    ),
    Option(
        "--perf-isolate",
        "`process` measures every repeat in a fresh process; `none` measures in this one, for debugging, and "
        "neither judges nor writes baselines",
        choices=("process", "none"),
        default="process",
    ),
    Option(
        "--perf-github",
        "`auto` writes annotations and a step summary when GITHUB_ACTIONS is true",
        choices=("auto", "off"),
        default="auto",
    ),
)

INI_ONLY: tuple[tuple[str, Literal["string", "bool", "linelist"], str, str], ...] = (
    ("perf_marker", "string", "name of the marker of perf tests", "perf"),
    (
        "perf_loops",
        "string",
        "calls of the function in one timed step: a number, or `auto` for as many as take 100 us (times are per call)",
        "1",
    ),
    ("perf_key_extra", "linelist", "context names that also decide whether times are comparable", ""),
    ("perf_against_setup", "string", "command that builds the other revision, run in its folder", ""),
    ("perf_against_tests", "string", "whose tests --perf-against runs on the other revision: base or head", "base"),
    ("perf_baseline_trace", "bool", "keep one exemplar step's trace beside each baseline", "true"),
    ("verbosity_perf", "string", "verbosity of the perf summary, instead of pytest's", "auto"),
)


FLAGS = tuple(option.flag for option in OPTIONS)
"""Short spellings of all options."""


class _Mode(argparse.Action):
    """An option that is a flag, and takes a mode only after an equals sign.

    An optional value would swallow the path behind it. Here `--perfdl-update` and `--perfdl-update=all` are option
    strings of their own, which argparse matches whole before it looks for an equals sign.
    """

    def __init__(self, option_strings: list[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, _parser: object, namespace: object, _values: object, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, (option_string or "").partition("=")[2] or "changed")


def register(parser: pytest.Parser, *, in_short: bool) -> None:
    """Add every option and ini key to pytest in the long spelling.

    With `in_short` also in the short one, where it is free: when arguments can no longer be replaced (`short_names`).
    """
    taken = short_names.registered(parser)
    group = parser.getgroup(
        "perfdl", "performance regression tests (pytest-perfdl); --perf... is short for --perfdl... where nobody has it"
    )
    for option in OPTIONS:
        # argparse formats its help texts with %, pytest prints those of ini keys as they are.
        flag = long_name(option.flag)
        text = f"({option.flag}) {option.help} (default: {option.default})"
        kwargs: dict[str, Any] = {"dest": option.dest, "default": None, "help": text.replace("%", "%%")}
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
    """Add the short ini keys that nobody else has registered."""
    for name, kind, text in ini_keys():
        short_names.add_ini(parser, name, f"short for {long_name(name)}: {text}", kind)


def ini_keys() -> list[tuple[str, Literal["string", "bool", "linelist"], str]]:
    """Every ini key in its short spelling, with its type and what it means."""
    with_flag = [(each.ini, each.ini_type, f"{each.help} (flag: {each.flag})") for each in OPTIONS if each.ini]
    only = [(name, kind, f"{text} (default: {default or 'none'})") for name, kind, text, default in INI_ONLY]
    return [*with_flag, *only]


INI_KEYS = frozenset(name for name, *_ in ini_keys())
"""All of them."""


def option_value(config: pytest.Config, flag: str) -> Any:
    """What the command line says, `None` where it says nothing."""
    return config.getoption(_dest(flag))


def _dest(flag: str) -> str:
    return long_name(flag).lstrip("-").replace("-", "_")
