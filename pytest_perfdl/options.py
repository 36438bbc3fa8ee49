"""Command line and ini, resolved once into frozen values that travel.

`OPTIONS` is the one table: the command line, the ini keys and the documentation are all made from it.
Every command-line option defaults to `None`, so that "not given" can be told from "given as the default".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_perfdl.units import plural

UpdateMode = Literal["new", "changed", "all", "append"]
Isolate = Literal["process", "none"]

FIXTURE = "perf"
RECORDING_REPEATS = 10
CHECKING_REPEATS = 1
CONFIRMING_SECONDS = 300.0
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
    action: Literal["store", "append", "store_true", "optional"] = "store"
    const: str | None = None
    default: str = ""
    """The built-in default, as text."""

    @property
    def dest(self) -> str:
        """Attribute of `config.option`."""
        return self.flag.lstrip("-").replace("-", "_")


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
        "write baselines (implies --perf): `new` only where there is none, `changed` where the verdict calls "
        "for it, `all`, or `append` repeats from another occasion",
        metavar="MODE",
        choices=("new", "changed", "all", "append"),
        action="optional",
        const="changed",
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
        default="invalid,regressed,missing,outdated",
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
        "measure against this git revision instead of baselines: its tests and the working tree's in turns, on "
        "this machine",
        metavar="REF",
        default="baselines",
    ),
    Option(
        "--perf-budget",
        "seconds that confirming one suspect may take in pairs of processes",
        ini="perf_budget",
        metavar="SECONDS",
        default=f"{CONFIRMING_SECONDS:g}",
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


def register(parser: pytest.Parser) -> None:
    """Add every option and ini key to pytest."""
    group = parser.getgroup("perfdl", "performance regression tests (pytest-perfdl)")
    for option in OPTIONS:
        # argparse formats its help texts with %, pytest prints those of ini keys as they are.
        text = f"{option.help} (default: {option.default})".replace("%", "%%")
        kwargs: dict[str, Any] = {"dest": option.dest, "default": None, "help": text}
        if option.action == "optional":
            kwargs |= {"nargs": "?", "const": option.const, "choices": option.choices}
        elif option.action == "store_true":
            kwargs |= {"action": "store_true"}
        elif option.choices:
            kwargs |= {"choices": option.choices}
        else:
            kwargs |= {"action": option.action, "metavar": option.metavar}
        group.addoption(option.flag, **kwargs)
        if option.ini:
            parser.addini(option.ini, f"{option.help} (flag: {option.flag})", type=option.ini_type, default=None)
    for name, kind, text, default in INI_ONLY:
        parser.addini(name, f"{text} (default: {default or 'none'})", type=kind, default=None)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a run was asked for. Validated; nothing reads `config.option` after this."""

    enabled: bool
    update: UpdateMode | None
    isolate: Isolate
    marker: str
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
    """Seconds for confirming one suspect in pairs."""
    inject: float
    """Share by which the working tree's steps are slowed down on purpose: 0.05 for 5 %; 0 for not at all."""
    key_extra: tuple[str, ...]
    baseline_trace: bool
    verbosity: int

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
    update = config.getoption("perf_update")
    against = config.getoption("perf_against")
    enabled = bool(config.getoption("perf") or config.getini("perf")) or update is not None or against is not None
    if config.getoption("no_perf"):
        if update is not None:
            raise pytest.UsageError("--no-perf and --perf-update contradict each other: drop one")
        enabled = False
    if against is not None and update is not None:
        raise pytest.UsageError("--perf-against compares two revisions and writes no baselines: drop --perf-update")
    isolate: Isolate = config.getoption("perf_isolate") or "process"
    debugging = [flag for flag, dest in _DEBUGGING.items() if config.getoption(dest, False)]
    if debugging:
        isolate = "none"
    if isolate == "none" and update is not None:
        cause = f"{debugging[0]} measures" if debugging else "--perf-isolate=none measures"
        raise pytest.UsageError(f"{cause} in this process, which never writes baselines: drop --perf-update")
    if isolate == "none" and against is not None:
        raise pytest.UsageError("--perf-against needs processes of its own: drop --perf-isolate=none and debuggers")
    inject = config.getoption("perf_inject")
    if inject is not None and update is not None:
        raise pytest.UsageError(
            "--perf-inject slows steps down, and no baseline may be made of that: drop --perf-update"
        )
    if inject is not None and isolate == "none":
        raise pytest.UsageError("--perf-inject needs processes of its own: drop --perf-isolate=none and debuggers")
    if config.getoption("perf_require") is not None and not config.getoption("no_perf"):
        if not enabled:
            raise pytest.UsageError(
                "--perf-require: nothing is compared without --perf (what perf_require in the ini file asks for holds "
                "under --perf alone)"
            )
        if isolate == "none":
            raise pytest.UsageError("--perf-require: --perf-isolate=none and debuggers compare nothing, drop one")
    json = config.getoption("perf_json")
    verbosity = config.getini("verbosity_perf")
    fallback = config.get_verbosity()
    return Settings(
        enabled=enabled,
        update=update,
        isolate=isolate,
        marker=config.getini("perf_marker") or "perf",
        folder=reader.text("perf_dir", "baselines"),
        report=config.rootpath / reader.text("perf_report", "perf-report"),
        json=config.invocation_params.dir / json if json else None,
        traces=reader.choice("perf_traces", ("regressed", "all", "none"), "regressed"),
        github=config.getoption("perf_github") != "off",
        limits=(tuple(config.getini("perf_limits") or ()), tuple(config.getoption("perf_limit") or ())),
        fail_on=reader.text("perf_fail_on", "invalid,regressed,missing,outdated"),
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
        against_setup=config.getini("perf_against_setup") or "",
        against_tests=reader.ini_choice("perf_against_tests", ("base", "head"), "base"),
        budget=reader.seconds("perf_budget", CONFIRMING_SECONDS),
        inject=0.0 if inject is None else _share(inject),
        key_extra=tuple(config.getini("perf_key_extra") or ()),
        baseline_trace=config.getini("perf_baseline_trace") is not False,
        verbosity=fallback if verbosity in (None, "", "auto") else reader.integer("verbosity_perf", verbosity),
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _share(text: str) -> float:
    """The share that `--perf-inject` names in percent."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 < percent < float("inf"):
        raise pytest.UsageError(f"--perf-inject = {text!r}: expected a number of percent above 0, such as 5")
    return percent / 100


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
        given = self.config.getoption(name)
        value = given if given is not None else self.config.getini(name)
        return str(value).strip() if value is not None and str(value).strip() else default

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> Any:
        value = self.text(name, default)
        if value not in allowed:
            raise pytest.UsageError(f"ini {name} = {value!r}: expected one of {', '.join(allowed)}")
        return value

    def ini_choice(self, name: str, allowed: tuple[str, ...], default: str) -> Any:
        value = self.config.getini(name) or default
        if value not in allowed:
            raise pytest.UsageError(f"ini {name} = {value!r}: expected one of {', '.join(allowed)}")
        return value

    def flag_number(self, name: str, least: int) -> int | None:
        value = self.config.getoption(name)
        return None if value is None else self._number("--" + name.replace("_", "-"), value, least)

    def ini_number(self, name: str, least: int) -> int | None:
        value = self.config.getini(name)
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
            raise pytest.UsageError(f"{name} = {text!r}: expected a number of seconds above 0")
        return value

    @staticmethod
    def _number(where: str, value: str, least: int) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise pytest.UsageError(f"{where} = {value!r}: expected a whole number, {least} or more")
        return number


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
    where = "in this process, not judged" if settings.isolate == "none" else "each test in processes of its own"
    return ", ".join((f"perf: {mode}", where, base, *settings.notes))


def smoke_line(tests: int) -> str:
    """What an ordinary run says about perf tests."""
    return f"perf: {plural(tests, 'perf test')} ran once, unmeasured; pytest --perf measures and judges"


def is_perf_test(item: pytest.Item, marker: str) -> bool:
    """Whether an item carries the marker or asks for the fixture.

    A doctest in a marked module inherits the marker and is no perf test all the same.
    """
    if not isinstance(item, pytest.Function):
        return False
    return item.get_closest_marker(marker) is not None or FIXTURE in item.fixturenames
