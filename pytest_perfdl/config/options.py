"""Command line and ini, resolved once into frozen values that travel.

`OPTIONS` is the one table: the command line, the ini keys and the documentation are all made from it.
Every command-line option defaults to `None`, so that "not given" can be told from "given as the default".
Everything has two spellings, `--perf-steps` and `--perfdl-steps`; why, and which holds, is told in `short_names`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_perfdl.config import short_names
from pytest_perfdl.config.short_names import long_name, read_ini
from pytest_perfdl.model.units import plural

UpdateMode = Literal["new", "changed", "all", "append"]
UPDATE_MODES: tuple[UpdateMode, ...] = ("new", "changed", "all", "append")
Isolate = Literal["process", "none"]

RECORDING_REPEATS = 10
CHECKING_REPEATS = 1
BUDGET_SECONDS = 300.0
FAILS = "invalid,regressed,missing,outdated,suspect-in-every-round"
"""What fails a test by default."""
NOTHING_SELECTED = "perf: no perf test was selected, so --perf measured nothing"


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


_INI_KEYS = frozenset(name for name, *_ in ini_keys())


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a run was asked for. Validated; nothing reads `config.option` after this."""

    enabled: bool
    update: UpdateMode | None
    isolate: Isolate
    markers: tuple[str, ...]
    """Names of the marker of perf tests."""
    folder: str
    report: Path
    json: Path | None
    traces: Literal["regressed", "all", "none"]
    github: bool
    limits: tuple[tuple[str, ...], tuple[str, ...]]
    """`METRIC:SPEC` texts from ini and from the command line; the later group wins."""
    fail_on: str
    require: int
    """Least number of tests that must be compared, or the run fails."""
    warmup: int | None
    steps: int | None
    repeats: int | None
    threads: int | None
    """Run shape from the command line, which wins over the marker; `None` where not given."""
    ini_shape: Mapping[str, int]
    """Run shape from ini, over which the marker wins."""
    timeout: float
    against: str | None
    """Revision to measure against, as it was given."""
    against_setup: str
    against_tests: Literal["base", "head"]
    budget: float
    """Seconds for the rounds of one test."""
    resolution: float | None
    """How much slower a test may be, as a share, to be unchanged where its budget ended; `None` for twice its limit."""
    pin: Literal["auto", "off"]
    """Whether both processes of a round may be bound to one processor."""
    start: Literal["auto", "fresh"]
    """Whether both processes of a round may be forked."""
    skip_same: bool
    """Whether tests whose code is that of their baseline are not measured."""
    inject: float
    """Share by which the working tree's steps are slowed down on purpose: 0.05 for 5 %; 0 for not at all."""
    key_extra: tuple[str, ...]
    baseline_trace: bool
    verbosity: int
    clashes: Mapping[str, str]
    """Short spellings of options that somebody else has registered, and who that is."""

    def records(self, *, has_baseline: bool) -> bool:
        """Whether a test is measured to be recorded from the beginning, rather than checked first."""
        return self.update in ("all", "append") or (self.update is not None and not has_baseline)

    @property
    def notes(self) -> tuple[str, ...]:
        """What everything that tells of the run must say."""
        return (f"every step slowed down by {self.inject * 100:g} % on purpose (--perf-inject)",) if self.inject else ()


def resolve(config: pytest.Config) -> Settings:
    """Read the command line and ini into one value.

    Raises
    ------
    pytest.UsageError
        For a value that cannot be used, in one line that names the option.
    """
    reader = _Reader(config)
    update = _option(config, "--perf-update")
    against = _option(config, "--perf-against")
    enabled = bool(_option(config, "--perf") or read_ini(config, "perf")) or update is not None or against is not None
    if _option(config, "--no-perf"):
        if update is not None:
            raise pytest.UsageError("--no-perf and --perf-update contradict each other: drop one")
        enabled = False
    if against is not None and update is not None:
        raise pytest.UsageError("--perf-against compares two revisions and writes no baselines: drop --perf-update")
    isolate: Isolate = reader.choice("perf_isolate", ("process", "none"), "process")
    debugging = [flag for flag, dest in _DEBUGGING.items() if config.getoption(dest, False)]
    if debugging:
        isolate = "none"
    if isolate == "none" and update is not None:
        cause = f"{debugging[0]} measures" if debugging else "--perf-isolate=none measures"
        raise pytest.UsageError(f"{cause} in this process, which never writes baselines: drop --perf-update")
    if isolate == "none" and against is not None:
        raise pytest.UsageError("--perf-against needs processes of its own: drop --perf-isolate=none and debuggers")
    inject = _option(config, "--perf-inject")
    if inject is not None and update is not None:
        raise pytest.UsageError(
            "--perf-inject slows steps down, and no baseline may be made of that: drop --perf-update"
        )
    if inject is not None and isolate == "none":
        raise pytest.UsageError("--perf-inject needs processes of its own: drop --perf-isolate=none and debuggers")
    if _option(config, "--perf-require") is not None and not _option(config, "--no-perf"):
        if not enabled:
            raise pytest.UsageError(
                "--perf-require: nothing is compared without --perf (what perf_require in the ini file asks for holds "
                "under --perf alone)"
            )
        if isolate == "none":
            raise pytest.UsageError("--perf-require: --perf-isolate=none and debuggers compare nothing, drop one")
    json = _option(config, "--perf-json")
    verbosity = read_ini(config, "verbosity_perf")
    fallback = config.get_verbosity()
    return Settings(
        enabled=enabled,
        update=update,
        isolate=isolate,
        markers=short_names.markers(config),
        folder=reader.text("perf_dir", "baselines"),
        report=config.rootpath / reader.text("perf_report", "perf-report"),
        json=config.invocation_params.dir / json if json else None,
        traces=reader.choice("perf_traces", ("regressed", "all", "none"), "regressed"),
        github=reader.choice("perf_github", ("auto", "off"), "auto") == "auto",
        limits=(tuple(read_ini(config, "perf_limits") or ()), tuple(_option(config, "--perf-limit") or ())),
        fail_on=reader.text("perf_fail_on", FAILS),
        require=_first(reader.flag_number("perf_require", 0), reader.ini_number("perf_require", 0), 0),
        warmup=reader.flag_number("perf_warmup", 0),
        steps=reader.flag_number("perf_steps", 2),
        repeats=reader.flag_number("perf_repeats", 1),
        threads=reader.flag_number("perf_threads", 1),
        ini_shape={
            name: value
            for name, least in (("warmup", 0), ("steps", 2), ("repeats", 1), ("threads", 1))
            if (value := reader.ini_number(f"perf_{name}", least)) is not None
        },
        timeout=reader.seconds("perf_timeout", 600.0),
        against=against,
        against_setup=read_ini(config, "perf_against_setup") or "",
        against_tests=reader.ini_choice("perf_against_tests", ("base", "head"), "base"),
        budget=reader.seconds("perf_budget", BUDGET_SECONDS),
        resolution=reader.share("perf_resolution"),
        pin=reader.choice("perf_pin", ("auto", "off"), "auto"),
        start=reader.choice("perf_start", ("auto", "fresh"), "auto"),
        skip_same=(
            bool(_option(config, "--perf-skip-same") or read_ini(config, "perf_skip_same"))
            and update is None
            and against is None
            and inject is None
        ),
        inject=reader.share("perf_inject") or 0.0,
        key_extra=tuple(read_ini(config, "perf_key_extra") or ()),
        baseline_trace=read_ini(config, "perf_baseline_trace") is not False,
        verbosity=fallback if verbosity in (None, "", "auto") else reader.integer("verbosity_perf", verbosity),
        clashes=short_names.clashes(config, FLAGS),
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def refuse_unknown_mode(args: Sequence[str]) -> None:
    """Name the modes of `--perf-update` to whom has given another one.

    Raises
    ------
    pytest.UsageError
    """
    for argument in args:
        flag, equals, mode = argument.partition("=")
        if flag == "--perf-update" and equals and mode not in UPDATE_MODES:
            raise pytest.UsageError(f"{flag} = {mode!r}: expected one of {', '.join(UPDATE_MODES)}")


def refuse_mode_as_path(config: pytest.Config) -> None:
    """Say how a mode of `--perf-update` is written to whom it was taken for a path.

    Raises
    ------
    pytest.UsageError
    """
    if _option(config, "--perf-update") is None:
        return
    for name in config.option.file_or_dir:
        if name in UPDATE_MODES and not (config.invocation_params.dir / name).exists():
            raise pytest.UsageError(f"no file or folder is called {name!r}: for the mode write --perf-update={name}")


def _option(config: pytest.Config, flag: str) -> Any:
    """What the command line says, `None` where it says nothing."""
    return config.getoption(_dest(flag))


def _dest(flag: str) -> str:
    return long_name(flag).lstrip("-").replace("-", "_")


_DEBUGGING = {
    "--pdb": "usepdb",
    "--trace": "trace",
    "--setup-show": "setupshow",
    "--setup-only": "setuponly",
    "--setup-plan": "setupplan",
}


class _Reader:
    """Command line before ini before built-in, with errors that name the place."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def text(self, name: str, default: str) -> str:
        given = _option(self.config, _flag(name))
        value = given if given is not None or name not in _INI_KEYS else read_ini(self.config, name)
        return str(value).strip() if value is not None and str(value).strip() else default

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> Any:
        value = self.text(name, default)
        if value not in allowed:
            raise pytest.UsageError(f"{self._where(name)} = {value!r}: expected one of {', '.join(allowed)}")
        return value

    def _where(self, name: str) -> str:
        """What to call a setting by: where it was given."""
        return f"ini {name}" if _option(self.config, _flag(name)) is None else _flag(name)

    def ini_choice(self, name: str, allowed: tuple[str, ...], default: str) -> Any:
        value = read_ini(self.config, name) or default
        if value not in allowed:
            raise pytest.UsageError(f"ini {name} = {value!r}: expected one of {', '.join(allowed)}")
        return value

    def flag_number(self, name: str, least: int) -> int | None:
        value = _option(self.config, _flag(name))
        return None if value is None else self._number(_flag(name), value, least)

    def ini_number(self, name: str, least: int) -> int | None:
        value = read_ini(self.config, name)
        return None if value in (None, "") else self._number(f"ini {name}", value, least)

    def integer(self, name: str, value: str) -> int:
        return self._number(f"ini {name}", value, -10)

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise pytest.UsageError(f"{self._where(name)} = {text!r}: expected a number of seconds above 0")
        return value

    def share(self, name: str) -> float | None:
        """A number of percent as a share; `None` where none is given."""
        text = self.text(name, "")
        if not text:
            return None
        try:
            percent = float(text.removesuffix("%"))
        except ValueError:
            percent = -1.0
        if not 0 < percent < float("inf"):
            raise pytest.UsageError(f"{self._where(name)} = {text!r}: expected a number of percent above 0, such as 5")
        return percent / 100

    @staticmethod
    def _number(where: str, value: str, least: int) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise pytest.UsageError(f"{where} = {value!r}: expected a whole number, {least} or more")
        return number


def _flag(ini: str) -> str:
    return "--" + ini.replace("_", "-")


def refuse_xdist(config: pytest.Config) -> None:
    """Tests measured side by side disturb each other, so pytest-xdist and `--perf` exclude each other.

    Raises
    ------
    pytest.UsageError
    """
    if config.getoption("numprocesses", None) or config.getoption("tx", None) or hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "--perf cannot run under pytest-xdist, whose processes would disturb each other's measurements: add -n0 "
            "(run the other tests apart: pytest -n auto -m 'not perf')"
        )


def header(settings: Settings, root: Path) -> str:
    """The line under pytest's own header."""
    if settings.against is None:
        stored = sum(1 for path in (root / settings.folder).rglob("*.json") if not path.name.endswith(".trace.json"))
        base = f"{plural(stored, 'baseline')} in {settings.folder}"
    else:
        base = f"against {settings.against}"
    mode = f"update {settings.update}" if settings.update else "on"
    clashes = [f"{flag} is registered by {owner}, use {long_name(flag)}" for flag, owner in settings.clashes.items()]
    where = "in this process, not judged" if settings.isolate == "none" else "each test in processes of its own"
    return ", ".join((f"perf: {mode}", where, base, *settings.notes, *clashes))


def smoke_line(tests: int) -> str:
    """What an ordinary run says about perf tests."""
    return f"perf: {plural(tests, 'perf test')} ran once, unmeasured; pytest --perf measures and judges"


def is_perf_test(item: pytest.Item, markers: tuple[str, ...]) -> bool:
    """Whether an item carries the marker or asks for the fixture.

    A doctest in a marked module inherits the marker and is no perf test all the same.
    """
    if not isinstance(item, pytest.Function):
        return False
    return any(item.get_closest_marker(name) for name in markers) or short_names.uses_fixture(item)


def foreign_marks_line(items: Sequence[pytest.Item], markers: tuple[str, ...]) -> str | None:
    """What to say of tests with a marker `perf` that the project registers itself; nothing where there are none."""
    if markers != (short_names.LONG,):
        return None
    others = [item for item in items if not is_perf_test(item, markers)]
    count = sum(item.get_closest_marker(short_names.SHORT) is not None for item in others)
    if not count:
        return None
    return (
        f"perf: {plural(count, 'test')} with the marker perf not measured, since this project registers that "
        "marker itself: mark perf tests as perfdl, or set perf_marker = perf"
    )
