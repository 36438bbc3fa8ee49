"""Command line and ini values, validated once and kept in a frozen dataclass."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_perfdl.config import short_names
from pytest_perfdl.config.options import (
    BUDGET_SECONDS,
    FAILS,
    FLAGS,
    INI_KEYS,
    SHARED_BUDGET_SECONDS,
    UPDATE_MODES,
    WAIVERS,
    UpdateMode,
    option_value,
)
from pytest_perfdl.config.short_names import long_name, read_ini
from pytest_perfdl.model.cases import CaseFilter, parse_filter
from pytest_perfdl.model.errors import InputError
from pytest_perfdl.model.launch import Launch
from pytest_perfdl.model.metrics import CONTEXT
from pytest_perfdl.model.record import LoopCount, checked_note
from pytest_perfdl.model.shard import Shard
from pytest_perfdl.model.shard import parsed as parsed_shard
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import without_secrets
from pytest_perfdl.system import pytest_internals
from pytest_perfdl.system.device_lock import folder_of as lock_folder_of
from pytest_perfdl.system.files import expanded
from pytest_perfdl.system.remote import local

ENVIRONMENT = pytest.StashKey[Mapping[str, str]]()
"""The environment before any conftest file was loaded."""

Isolate = Literal["process", "none"]
Benchmarks = Literal["false", "true", "marked"]


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a run, validated; `config.option` is not read afterwards."""

    enabled: bool
    update: UpdateMode | None
    note: str | None
    """Why baselines are recorded, to be kept in them; `None` if not given."""
    isolate: Isolate
    markers: tuple[str, ...]
    """Names of the marker for perf tests."""
    folder: str
    report: Path
    json: Path | None
    benchmark_json: Path | None
    """The file in pytest-benchmark's form."""
    benchmarks: Benchmarks
    """Which tests of pytest-benchmark are perf tests."""
    shared: bool
    """Whether those of a file share processes."""
    traces: Literal["regressed", "all", "none"]
    github: bool
    limits: tuple[tuple[str, ...], tuple[str, ...]]
    """`METRIC:SPEC` texts from ini and from the command line; the later group wins."""
    fail_on: str
    require: int
    """Minimum number of compared tests; the run fails with fewer."""
    shard: Shard | None
    """Which part of the perf tests to measure; `None` for all of them."""
    cases: CaseFilter
    """Which cases of tables are measured."""
    warmup: int | None
    steps: int | None
    repeats: int | None
    threads: int | None
    """From the command line, which takes precedence over the marker; `None` if not given."""
    ini_shape: Mapping[str, int]
    """From ini, over which the marker takes precedence."""
    loops: LoopCount | None
    """Calls in a timed step, from ini, over which the marker takes precedence; `None` if not given."""
    timeout: float
    launch: Launch
    against: str | None
    """Git revision to compare with, as given on the command line."""
    against_python: str | None
    """Interpreter of the other side, as given on the command line or in the ini file; `None` for this one."""
    against_setup: str
    against_tests: Literal["head", "base", "own"]
    """Whose definition of a test both sides run, where it differs; `own` for each its own."""
    budget: float
    """Time limit of the paired rounds of one test, in seconds."""
    shared_budget: float
    """The same for tests of a file that share processes, together."""
    resolution: float | None
    """Slowdown (a fraction) to exclude for `unchanged` when the time budget ends; `None` for twice the limit."""
    pin: Literal["auto", "off"]
    """Whether both processes of a paired round may be pinned to one CPU."""
    calibrate: Literal["auto", "off"]
    """Whether peak rates of the machine are measured when its first baseline is recorded."""
    memory: Literal["changed", "all", "off"]
    """Which tests get a breakdown of peak memory by tensor."""
    start: Literal["auto", "fresh"]
    """Whether both processes of a paired round may be forked."""
    device_lock: Path | None
    """Folder of the lock files of devices; `None` if runs at the same time are not kept apart."""
    skip_same: bool
    """Whether tests with the same code as their baseline are not measured."""
    inject: float
    """Fraction by which the steps of the working tree are slowed down on purpose: 0.05 for 5 %; 0 for none."""
    key_extra: tuple[str, ...]
    waivers: str
    """Path of the waiver file relative to the root directory, or "off"."""
    verbosity: int
    clashes: Mapping[str, str]
    """Short option names that another plugin has registered, and that plugin's name."""

    @property
    def compares_sides(self) -> bool:
        """Whether tests are compared with another revision or interpreter, instead of with baselines."""
        return self.against is not None or self.against_python is not None

    @property
    def other_side(self) -> str:
        """The other side in words: "main", "/venvs/old/bin/python", "main with /venvs/old/bin/python"."""
        return " with ".join(filter(None, (self.against, self.against_python)))

    @property
    def deciding(self) -> dict[str, str]:
        """What decides how tests are measured and judged, by option or ini key: equal in runs that are comparable."""
        values: dict[str, object] = {
            "perf_limits": ", ".join(self.limits[0]),
            "--perf-limit": ", ".join(self.limits[1]),
            **{f"perf_{name}": value for name, value in self.ini_shape.items()},
            **{f"--perf-{name}": getattr(self, name) for name in ("warmup", "steps", "repeats", "threads")},
            "perf_nodes": self.launch.nodes,
            "perf_key_extra": ", ".join(self.key_extra),
            "--perf-inject": self.inject or None,
            "--perf-update": self.update,
        }
        for name in ("fail_on", "loops", "budget", "resolution", "isolate", "shared", "pin", "start", "against_tests"):
            values[f"perf_{name}"] = getattr(self, name)
        values["perf_waivers"] = self.waivers
        return {name: str(value) for name, value in values.items() if value not in (None, "")}

    def records(self, *, has_baseline: bool) -> bool:
        """Whether a test is measured to be recorded, without a comparison first."""
        return self.update in ("all", "append") or (self.update is not None and not has_baseline)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that every report of the run must show."""
        return (
            (f"every step is slowed down by {self.inject * 100:g} % on purpose (--perf-inject)",) if self.inject else ()
        )


@dataclass(frozen=True, slots=True)
class _Mode:
    """What a run does: whether it measures, where, and what it compares or records."""

    enabled: bool
    update: UpdateMode | None
    isolate: Isolate
    debugging: str
    """The option because of which it measures in pytest's process; empty if none."""
    against: str | None
    python: str | None
    """As given on the command line."""
    inject: str | None

    @property
    def sided(self) -> str:
        """The option that turns the comparison of two sides on, for messages; empty if none does."""
        return "--perf-against" if self.against is not None else "--perf-against-python" if self.python else ""


def resolve(config: pytest.Config) -> Settings:
    """Read the command line and ini into one value.

    Raises
    ------
    pytest.UsageError
        A value is invalid; the message names the option in one line.
    """
    reader = _Reader(config)
    mode = _mode(config, reader)
    _refuse_contradictions(config, mode)
    shard = reader.shard()
    if not option_value(config, "--no-perf"):
        _refuse_without_comparison("--perf-require", mode, given=option_value(config, "--perf-require") is not None)
        _refuse_without_comparison("--perf-shard", mode, given=shard is not None)
    json, benchmark_json = reader.path("perf_json", ""), reader.path("perf_json_benchmark", "")
    return Settings(
        enabled=mode.enabled,
        update=mode.update,
        note=_note(config, mode.update),
        isolate=mode.isolate,
        markers=short_names.markers(config),
        folder=reader.path("perf_dir", "baselines"),
        report=config.rootpath / reader.path("perf_report", "perf-report"),
        json=config.invocation_params.dir / json if json else None,
        benchmark_json=config.invocation_params.dir / benchmark_json if benchmark_json else None,
        benchmarks=benchmarks(config),
        shared=read_ini(config, "perf_shared") is not False,
        traces=reader.choice("perf_traces", ("regressed", "all", "none"), "regressed"),
        github=reader.choice("perf_github", ("auto", "off"), "auto") == "auto",
        limits=(tuple(read_ini(config, "perf_limits") or ()), tuple(option_value(config, "--perf-limit") or ())),
        fail_on=reader.text("perf_fail_on", FAILS),
        require=reader.number("perf_require", 0, 0),
        shard=shard,
        cases=reader.cases(mode.update),
        warmup=reader.flag_number("perf_warmup", 0),
        steps=reader.flag_number("perf_steps", 2),
        repeats=reader.flag_number("perf_repeats", 1),
        threads=reader.flag_number("perf_threads", 1),
        ini_shape=reader.ini_shape(),
        loops=reader.loops("perf_loops"),
        timeout=reader.seconds("perf_timeout", 600.0),
        launch=reader.launch(),
        against=mode.against,
        # What the ini file says does not apply to runs that record baselines, or measure in this process.
        against_python=None if mode.update is not None or mode.isolate == "none" else reader.python(),
        against_setup=reader.text("perf_against_setup", ""),
        against_tests=reader.choice("perf_against_tests", ("head", "base", "own"), "head"),
        budget=reader.seconds("perf_budget", BUDGET_SECONDS),
        shared_budget=reader.seconds("perf_budget", SHARED_BUDGET_SECONDS),
        resolution=reader.share("perf_resolution"),
        pin=reader.choice("perf_pin", ("auto", "off"), "auto"),
        calibrate=reader.choice("perf_calibrate", ("auto", "off"), "auto"),
        memory=reader.choice("perf_memory", ("changed", "all", "off"), "changed"),
        start=reader.choice("perf_start", ("auto", "fresh"), "auto"),
        device_lock=reader.lock_folder(),
        skip_same=_skips_same(config, mode),
        inject=reader.share("perf_inject") or 0.0,
        key_extra=_context_names(tuple(read_ini(config, "perf_key_extra") or ())),
        waivers=reader.text("perf_waivers", WAIVERS),
        verbosity=config.get_verbosity(),
        clashes=short_names.clashes(config, FLAGS),
    )


def benchmarks(config: pytest.Config) -> Benchmarks:
    """Which tests of pytest-benchmark are perf tests, by the command line and ini.

    Raises
    ------
    pytest.UsageError
    """
    text = str(read_ini(config, "perf_benchmarks") or "false").strip()
    modes: tuple[Benchmarks, ...] = ("false", "true", "marked")
    if text not in modes:
        raise pytest.UsageError(f"ini perf_benchmarks = {text!r}: expected one of {', '.join(modes)}")
    given = modes[modes.index(text)]
    return "true" if given == "false" and option_value(config, "--perf-benchmarks") else given


def leaves_benchmarks_out(config: pytest.Config) -> bool:
    """Whether pytest-benchmark is told to skip its tests, or to run their functions once."""
    skips, only = (config.getoption(f"benchmark_{name}", False) for name in ("skip", "only"))
    disables, enables = (config.getoption(f"benchmark_{name}", False) for name in ("disable", "enable"))
    return bool((skips and not only) or (disables and not enables))


def unused_benchmark_options(config: pytest.Config) -> str:
    """A line about given options of pytest-benchmark that are of no effect with ours; empty if there is none."""
    unused = sorted(
        flag
        for flag, action in pytest_internals.option_actions(config).items()
        if flag.startswith("--benchmark-")
        and flag not in _USED_OF_BENCHMARK
        and config.getoption(action.dest, action.default) != action.default
    )
    return f"perf: not used with perf_benchmarks: {', '.join(unused)}" if unused else ""


_USED_OF_BENCHMARK = tuple(f"--benchmark-{name}" for name in ("skip", "only", "disable", "enable"))


def _mode(config: pytest.Config, reader: _Reader) -> _Mode:
    update = option_value(config, "--perf-update")
    against = option_value(config, "--perf-against")
    python = option_value(config, "--perf-against-python")
    if against is not None and not against.strip():
        raise pytest.UsageError("--perf-against: expected a git revision, such as main or HEAD~1")
    if python is not None and not python.strip():
        raise pytest.UsageError("--perf-against-python: expected the path of a Python interpreter")
    switched_on = option_value(config, "--perf") or read_ini(config, "perf")
    isolate: Isolate = reader.choice("perf_isolate", ("process", "none"), "process")
    debugging = next((flag for flag, dest in _DEBUGGING.items() if config.getoption(dest, False)), "")
    return _Mode(
        enabled=bool(switched_on or update or against or python) and not option_value(config, "--no-perf"),
        update=update,
        isolate="none" if debugging else isolate,
        debugging=debugging,
        against=against,
        python=python,
        inject=option_value(config, "--perf-inject"),
    )


def _refuse_contradictions(config: pytest.Config, mode: _Mode) -> None:
    if mode.update is not None:
        _refuse_recording(config, mode)
    if mode.isolate == "none":
        for flag in filter(None, (mode.sided, "--perf-inject" if mode.inject is not None else "")):
            raise pytest.UsageError(
                f"{flag} needs fresh processes: remove --perf-isolate=none and debugger options such as --pdb"
            )


def _refuse_recording(config: pytest.Config, mode: _Mode) -> None:
    """Reject what cannot be combined with `--perf-update`."""
    if option_value(config, "--no-perf"):
        raise pytest.UsageError("--no-perf and --perf-update cannot be combined: remove one of them")
    if mode.sided:
        raise pytest.UsageError(f"{mode.sided} compares two sides and records no baselines: remove --perf-update")
    if mode.isolate == "none":
        raise pytest.UsageError(
            f"{mode.debugging or '--perf-isolate=none'} measures in pytest's process, which cannot record baselines: "
            "remove --perf-update"
        )
    if mode.inject is not None:
        raise pytest.UsageError(
            "--perf-inject slows down steps, so the result cannot be recorded as a baseline: remove --perf-update"
        )


_NEEDS_PERF = {
    "--perf-require": "because nothing is compared without --perf: add --perf (or set perf_require in the ini file, "
    "which has no effect without --perf)",
    "--perf-shard": "because nothing is measured without --perf: add --perf",
}
"""Options that are wrong in a run that compares nothing, and what to do."""


def _refuse_without_comparison(flag: str, mode: _Mode, *, given: bool) -> None:
    if given and not mode.enabled:
        raise pytest.UsageError(f"{flag} needs --perf, {_NEEDS_PERF[flag]}")
    if given and mode.isolate == "none":
        raise pytest.UsageError(
            f"{flag} cannot be combined with --perf-isolate=none or debugger options such as --pdb, because nothing is "
            "compared: remove one of them"
        )


def _skips_same(config: pytest.Config, mode: _Mode) -> bool:
    wanted = option_value(config, "--perf-skip-same") or read_ini(config, "perf_skip_same")
    return bool(wanted) and mode.update is None and not mode.sided and mode.inject is None


def _note(config: pytest.Config, update: UpdateMode | None) -> str | None:
    text = option_value(config, "--perf-note")
    if text is None:
        return None
    if update is None:
        raise pytest.UsageError(
            "--perf-note is kept in the baselines that a run records, but this run records none: add --perf-update"
        )
    try:
        return checked_note(without_secrets(text))
    except ValueError as error:
        raise pytest.UsageError(f"--perf-note: {error}") from None


def _context_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in CONTEXT:
            raise pytest.UsageError(f"ini perf_key_extra = {name!r}: expected one of {', '.join(CONTEXT)}")
    return names


def refuse_unknown_mode(args: Sequence[str]) -> None:
    """Reject an unknown mode of `--perf-update`, and name the valid ones.

    Raises
    ------
    pytest.UsageError
    """
    for argument in args:
        flag, equals, mode = argument.partition("=")
        if flag == "--perf-update" and equals and mode not in UPDATE_MODES:
            raise pytest.UsageError(f"{flag} = {mode!r}: expected one of {', '.join(UPDATE_MODES)}")


def refuse_mode_as_path(config: pytest.Config) -> None:
    """Reject a mode of `--perf-update` that was given as a path, and show the right spelling.

    Raises
    ------
    pytest.UsageError
    """
    if option_value(config, "--perf-update") is None:
        return
    for name in config.option.file_or_dir:
        if name in UPDATE_MODES and not (config.invocation_params.dir / name).exists():
            raise pytest.UsageError(
                f"there is no file or directory {name!r}; to record in mode {name!r}, write --perf-update={name!r}"
            )


_DEBUGGING = {
    "--pdb": "usepdb",
    "--trace": "trace",
    "--setup-show": "setupshow",
    "--setup-only": "setuponly",
    "--setup-plan": "setupplan",
}


class _Reader:
    """Reads command line over ini over built-in; errors name the option or ini key."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def text(self, name: str, default: str) -> str:
        given = option_value(self.config, _flag(name))
        value = given if given is not None or name not in INI_KEYS else read_ini(self.config, name)
        return str(value).strip() if value is not None and str(value).strip() else default

    def path(self, name: str, default: str) -> str:
        """A file or folder that is written."""
        try:
            return local(self.text(name, default))
        except ValueError as error:
            raise pytest.UsageError(f"{self._where(name)}: {error}") from None

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> Any:
        value = self.text(name, default)
        if value not in allowed:
            raise pytest.UsageError(f"{self._where(name)} = {value!r}: expected one of {', '.join(allowed)}")
        return value

    def _where(self, name: str) -> str:
        """The name of a setting where it was given: option or ini key."""
        return f"ini {name}" if option_value(self.config, _flag(name)) is None else _flag(name)

    def ini_shape(self) -> dict[str, int]:
        """Numbers of steps, processes and threads that the ini file gives."""
        found = {
            name: self.ini_number(f"perf_{name}", least)
            for name, least in (("warmup", 0), ("steps", 2), ("repeats", 1), ("threads", 1))
        }
        return {name: value for name, value in found.items() if value is not None}

    def python(self) -> str | None:
        """The other side's interpreter: a name to be found on the PATH, or a path, in the ini file from its folder."""
        given = self.text("perf_against_python", "")
        if option_value(self.config, "--perf-against-python") is not None or os.sep not in given:
            return given or None
        return str(self.config.rootpath / expanded(given))

    def flag_number(self, name: str, least: int) -> int | None:
        value = option_value(self.config, _flag(name))
        return None if value is None else self._number(_flag(name), value, least)

    def ini_number(self, name: str, least: int) -> int | None:
        value = read_ini(self.config, name)
        return None if value in (None, "") else self._number(f"ini {name}", value, least)

    def number(self, name: str, least: int, default: int) -> int:
        found = self.flag_number(name, least), self.ini_number(name, least), default
        return next(value for value in found if value is not None)

    def loops(self, name: str) -> LoopCount | None:
        """Calls in a step; `None` where the ini file says nothing."""
        return "auto" if read_ini(self.config, name) == "auto" else self.ini_number(name, 1)

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise pytest.UsageError(f"{self._where(name)} = {text!r}: expected a number of seconds above 0")
        return value

    def launch(self) -> Launch:
        """How ranks are launched."""
        nodes = self.number("perf_nodes", 1, 1)
        command, address = self.text("perf_launch", ""), self.text("perf_rendezvous", "")
        try:
            prefix = tuple(shlex.split(command))
        except ValueError as error:
            raise pytest.UsageError(f"{self._where('perf_launch')} = {command!r}: {error}") from None
        host, colon, port = address.rpartition(":")
        if address and not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
            raise pytest.UsageError(
                f"{self._where('perf_rendezvous')} = {address!r}: expected HOST:PORT, such as node0:29500"
            )
        if nodes > 1 and not (prefix and address):
            raise pytest.UsageError(
                f"{self._where('perf_nodes')} = {nodes}: several nodes also need --perf-launch, which starts a "
                "launcher on each, and --perf-rendezvous, where the launchers meet"
            )
        return Launch(prefix, nodes, address, self.seconds("perf_rank_timeout", 120.0))

    def shard(self) -> Shard | None:
        """The part of the perf tests to measure; `None` if not given."""
        given = option_value(self.config, "--perf-shard")
        try:
            return None if given is None else parsed_shard(given)
        except ValueError:
            raise pytest.UsageError(f"--perf-shard = {given!r}: expected I/N with I from 1 to N, such as 2/4") from None

    def cases(self, update: UpdateMode | None) -> CaseFilter:
        """Which cases of tables are measured; all if not given."""
        given = option_value(self.config, "--perf-case")
        if given is not None and update is not None:
            raise pytest.UsageError("--perf-case: tables are recorded with all of their cases, remove --perf-update")
        try:
            return CaseFilter() if given is None else parse_filter(given)
        except InputError as error:
            raise pytest.UsageError(f"--perf-case: {error}") from None

    def lock_folder(self) -> Path | None:
        """The folder of the lock files of devices; `None` for `off`."""
        text = self.text("perf_device_lock", "auto")
        try:
            return lock_folder_of(text)
        except ValueError as error:
            raise pytest.UsageError(f"{self._where('perf_device_lock')} = {text!r}: {error}") from None

    def share(self, name: str) -> float | None:
        """A percentage as a fraction; `None` if not given."""
        text = self.text(name, "")
        if not text:
            return None
        try:
            percent = float(text.removesuffix("%"))
        except ValueError:
            percent = -1.0
        if not 0 < percent < float("inf"):
            raise pytest.UsageError(f"{self._where(name)} = {text!r}: expected a percentage above 0, such as 5")
        return percent / 100

    @staticmethod
    def _number(where: str, value: str, least: int) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise pytest.UsageError(f"{where} = {value!r}: expected an integer of at least {least}")
        return number


def _flag(ini: str) -> str:
    return "--" + ini.replace("_", "-")


def refuse_xdist(config: pytest.Config) -> None:
    """Reject pytest-xdist with `--perf`: tests measured at the same time distort each other's times.

    Raises
    ------
    pytest.UsageError
    """
    if config.getoption("numprocesses", None) or config.getoption("tx", None) or hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "--perf cannot run with pytest-xdist, because its processes would distort each other's measurements: add "
            "-n0 (run the other tests separately: pytest -n auto -m 'not perf')"
        )


def header(settings: Settings, root: Path) -> str:
    """The line below pytest's header."""
    if settings.compares_sides:
        base = f"compared with {settings.other_side}"
    else:
        # Beside the baselines of a machine lies what was measured of the machine itself.
        stored = {*(root / settings.folder).rglob("*.json")} - {*(root / settings.folder).glob("*/machine.json")}
        base = f"{plural(len(stored), 'baseline')} in {settings.folder}"
    mode = f"update {settings.update}" if settings.update else "on"
    clashes = [f"{flag} is defined by {owner}: use {long_name(flag)}" for flag, owner in settings.clashes.items()]
    where = "in pytest's process, not compared" if settings.isolate == "none" else "fresh processes per test"
    shard = [] if settings.shard is None else [str(settings.shard)]
    return ", ".join((f"perf: {mode}", where, base, *shard, *settings.notes, *clashes))
