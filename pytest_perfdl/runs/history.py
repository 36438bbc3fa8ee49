"""A test's metrics over commits: from committed baselines or run files to points and change points.

`measurements` reads the baselines of all commits, and `run_files.measurements` run files from files, folders and URLs;
both give `Measurement`s. `histories` makes a series of each test, metric and machine, and finds its change points
(`stats.change_points`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pytest_perfdl.baseline.files import RECORD_SUFFIX, outline
from pytest_perfdl.baseline.text import LIMIT
from pytest_perfdl.machine.rates import FILE as MACHINE_FILE
from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import InputError, RecordError
from pytest_perfdl.model.metrics import CountedMetric, general, is_judged, of
from pytest_perfdl.model.record import INJECTED, Scalar, Series, metric_name
from pytest_perfdl.model.record_json import LARGEST, RUN_FILE_SCHEMA, Outline, Versioned, decoded
from pytest_perfdl.model.visible import visible
from pytest_perfdl.results.curve import SHORT, Point, TestHistory
from pytest_perfdl.stats.change_points import ChangePoint, change_points, exact_changes
from pytest_perfdl.stats.quantiles import student
from pytest_perfdl.system.git import (
    LOG_SECONDS,
    blobs,
    commit_of,
    cut_off,
    modified,
    names,
    read,
    top_of,
    trouble,
)

# What a history needs of records and run files.
#
# A history reads thousands of records. So only the parts that it needs are decoded (`record_json.Outline`). What is
# decoded is checked in the same way: types, that numbers are finite, and that there is one value per process.


_HASH_DIGITS = 12
_SAID = 200
"""Characters of an error's text."""


@dataclass(frozen=True, slots=True)
class Paired:
    """The result of paired rounds for one metric."""

    effect: float
    """Change against the baseline's code as a ratio."""
    interval: tuple[float, float]
    """Ends of its 95 % interval."""
    base: float | None
    """What the baseline's code took in these rounds."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A test at one commit on one machine."""

    test: str
    machine_id: str
    commit: str
    date: str
    context: Mapping[str, Scalar]
    """Of the process, with the settings that measured and the hash of the test's source."""
    metrics: Mapping[str, Series]
    """By full name."""
    subject: str = ""
    note: str = ""
    measured_commit: str = ""
    """The commit that was checked out when it was measured; empty if unknown."""
    base: Measurement | None = None
    """The baseline that it was compared with."""
    paired: Mapping[str, Paired] = field(default_factory=dict)
    """By full name of the metric."""


class _Metric(msgspec.Struct):
    evidence: str | None = None
    effect: int | float | None = None
    ci95: tuple[int | float, int | float] | None = None
    base: int | float | None = None


class _Test(msgspec.Struct):
    id: str
    record: Outline | None = None
    base_record: Outline | None = None
    verdict: str = ""
    metrics: dict[str, _Metric] = {}


class _Run(Versioned):
    date: str
    tests: list[_Test]
    commit: str | None = None


def is_baseline(path: str) -> bool:
    """Whether a file of the baselines folder is a record: neither a trace nor a machine's peak rates.

    >>> is_baseline("cpu-a/tests/test_gpt/test_step.json"), is_baseline("cpu-a/machine.json")
    (True, False)
    """
    return path.endswith(RECORD_SUFFIX) and not (path.count("/") == 1 and path.endswith(f"/{MACHINE_FILE}"))


def of_baseline(data: bytes, commit: str, date: str, subject: str) -> Measurement:
    """The measurement of a baseline file, at the commit that has it.

    Raises
    ------
    RecordError
        When it is no baseline, damaged, or of a newer version; the message continues the name of the file.
    """
    return _measurement(outline(data), commit, date, subject)


def of_run(data: bytes) -> tuple[Measurement, ...]:
    """The measurements of a run file; without tests that were not measured, are invalid or were slowed on purpose.

    Raises
    ------
    RecordError
        As `of_baseline` does.
    """
    form = decoded(data, _Run, RUN_FILE_SCHEMA)
    found = []
    for test in form.tests:
        # Rounds may be invalid where the record is not.
        if test.record is None or test.verdict == "invalid":
            continue
        if any(each.level == "invalid" for each in test.record.integrity):
            continue
        if any(each.code == INJECTED for each in test.record.integrity):
            continue
        base = None
        if test.base_record is not None:
            base = _measurement(test.base_record, "", "", "")
        paired = {name: each for name, metric in test.metrics.items() if (each := _read_pairs(metric)) is not None}
        found.append(_measurement(test.record, form.commit or "", form.date, "", base, paired))
    return tuple(found)


def _measurement(
    form: Outline,
    commit: str,
    date: str,
    subject: str,
    base: Measurement | None = None,
    paired: Mapping[str, Paired] | None = None,
) -> Measurement:
    last = form.occasions[-1]
    repeats = sum(each.repeats for each in form.occasions)
    metrics = {}
    for call in form.calls:
        for name, series in call.metrics.items():
            if len(series.values) != repeats or not series.values or not _finite(series.values):
                raise RecordError(f"is damaged (values of {visible(metric_name(call.name, name)[:_SAID])})")
            metrics[metric_name(call.name, name)] = Series(
                series.kind, series.unit, series.better, tuple(series.values)
            )
    return Measurement(
        test=form.test,
        machine_id=form.key.slug,
        commit=commit,
        date=date or last.date,
        context={**form.context, **_settings(form.plan), "test source": form.test_hash[:_HASH_DIGITS]},
        metrics=metrics,
        subject=subject,
        note=form.note or "",
        measured_commit=last.commit or "",
        base=base,
        paired=paired or {},
    )


def _settings(plan: Mapping[str, Any]) -> dict[str, Scalar]:
    """What a plan says, as text: a point under other settings is no change of the code."""
    return {visible(name): visible(json.dumps(value)[:_SAID]) for name, value in plan.items()}


def _read_pairs(metric: _Metric) -> Paired | None:
    if metric.evidence != "paired" or metric.effect is None or metric.ci95 is None:
        return None
    numbers: Sequence[Any] = (metric.effect, *metric.ci95)
    if not _finite(numbers) or min(numbers) <= -1:
        return None
    base = metric.base if metric.base is not None and _finite([metric.base]) else None
    return Paired(metric.effect, metric.ci95, base)


def _finite(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) and abs(value) <= LARGEST for value in values)


# From measurements to histories: one series for each test, metric and machine, with its change points.
#
# A point of a time is the geometric mean over the processes of the measurement. A measurement that was compared with
# its baseline in paired rounds has a better value: rounds measure both sides within minutes, so machine drift cancels.
# Its point is the level of the baseline times the effect of the rounds. The level of a baseline is that of the point of
# its commit if the history has one before, so the line goes on where a baseline was replaced; otherwise it is what the
# baseline stores.


ALL = "all"
"""In place of a metric's name."""
_DEFAULT = "step_time"
_DIGEST_DIGITS = 8
_NORMAL_95 = 1.96
"""Half the width of a 95 % interval in standard errors."""


def histories(measurements: Iterable[Measurement], test: str, metric: str | None) -> tuple[TestHistory, ...]:
    """The histories of all tests whose id contains a text, by id, metric and machine.

    Parameters
    ----------
    measurements
        In the order of their commits.
    test
        Part of the id; empty for all.
    metric
        Full name, general name (that of all calls), or `ALL`; `None` for the first judged metric of every call, which
        is `step_time` where there is one.
    """
    series: dict[tuple[str, str], list[Measurement]] = {}
    for each in measurements:
        if test in each.test:
            series.setdefault((each.test, each.machine_id), []).append(each)
    found = []
    for (name, machine), points in sorted(series.items()):
        for wanted in _chosen(points, metric):
            having = [each for each in points if wanted in each.metrics]
            found.append(_history(name, wanted, machine, having))
    return tuple(found)


def _chosen(measurements: Sequence[Measurement], metric: str | None) -> list[str]:
    """Names of the metrics to show, in the order of the newest record."""
    names = list(dict.fromkeys(name for each in reversed(measurements) for name in each.metrics))
    if metric == ALL:
        return names
    if metric is not None:
        return [name for name in names if metric in (name, general(name))]
    calls: dict[str, list[str]] = {}
    for name in names:
        calls.setdefault(name.rpartition(".")[0], []).append(name)
    chosen = []
    for own in calls.values():
        judged = [name for name in own if is_judged(name)] or own
        chosen.append(next((name for name in judged if general(name) == _DEFAULT), judged[0]))
    return chosen


def _history(test: str, metric: str, machine: str, measurements: Sequence[Measurement]) -> TestHistory:
    points: list[Point] = []
    levels: dict[str, float] = {}
    before: Measurement | None = None
    for each in measurements:
        value, interval, is_paired = _value(each, metric, levels)
        for commit in filter(None, (each.measured_commit, each.commit)):
            levels.setdefault(commit, value)
        changes = () if before is None else _changes(before.context, each.context)
        digest = _digest(each.context)
        points.append(
            Point(each.commit, each.date, value, interval, digest, changes, each.subject, each.note, is_paired)
        )
        before = each
    last = measurements[-1].metrics[metric]
    return TestHistory(
        test, metric, last.unit, last.better, machine, tuple(points), _find_changes(metric, measurements, points)
    )


def _value(
    measurement: Measurement, metric: str, levels: Mapping[str, float]
) -> tuple[float, tuple[float, float] | None, bool]:
    """The value of a point, its 95 % interval, and whether it follows from paired rounds."""
    measured, base, paired = measurement.metrics[metric], measurement.base, measurement.paired.get(metric)
    if paired is not None:
        level = None
        if base is not None:
            level = levels.get(base.measured_commit)
            if level is None and base.machine_id == measurement.machine_id and metric in base.metrics:
                level = mean(base.metrics[metric])[0]
        level = paired.base if level is None else level
        if level is not None and level > 0:
            low, high = (level * (1 + end) for end in paired.interval)
            return level * (1 + paired.effect), (low, high), True
    return (*mean(measured), False)


def mean(measured: Series) -> tuple[float, tuple[float, float] | None]:
    """The mean over processes and its 95 % interval, by Student's distribution; `None` for a single process.

    The geometric mean for times; the arithmetic one for counts, and where a value is not positive. Processes of one
    recording share the state of the machine, so another recording may differ by more than the interval.
    """
    values = measured.values
    if min(values) == max(values):
        return values[0], (values[0], values[0]) if len(values) > 1 or measured.kind == "counted" else None
    is_geometric = measured.kind == "timed" and min(values) > 0
    scaled = [math.log(value) for value in values] if is_geometric else list(values)
    center = statistics.fmean(scaled)
    reach = student(0.975, len(values) - 1) * statistics.stdev(scaled) / math.sqrt(len(values))
    if is_geometric:
        return math.exp(center), (math.exp(center - reach), math.exp(center + reach))
    return center, (center - reach, center + reach)


def _find_changes(metric: str, measurements: Sequence[Measurement], points: Sequence[Point]) -> tuple[ChangePoint, ...]:
    values = [point.value for point in points]
    if _is_exact(metric, [each.metrics[metric] for each in measurements]):
        return exact_changes(values)
    # A share or a wait may be 0: its logarithm says nothing.
    return change_points(values, _errors(points)) if min(values) > 0 else ()


def _errors(points: Sequence[Point]) -> list[float] | None:
    """Standard errors of the points on the log scale; `None` if no point follows from paired rounds.

    Only rounds tell the error of a point: processes of one recording share the state of the machine. A point without
    rounds counts as the least certain one of the others.
    """
    known = [_error(point) for point in points]
    largest = max(known)
    return [each or largest for each in known] if largest > 0 else None


def _error(point: Point) -> float:
    """Standard error of a point on the log scale; 0 if it is not known."""
    if not point.is_paired or point.interval is None or not 0 < point.interval[0] < point.interval[1]:
        return 0.0
    low, high = map(math.log, point.interval)
    return (high - low) / (2 * _NORMAL_95)


def _is_exact(metric: str, series: Sequence[Series]) -> bool:
    """Whether every difference of the metric is a change: it is counted, and the same in all processes."""
    known = of(metric)
    return all(each.kind == "counted" and min(each.values) == max(each.values) for each in series) and (
        not isinstance(known, CountedMetric) or known.reproducible
    )


def _changes(before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> tuple[tuple[str, str, str], ...]:
    names = sorted({*before, *after})
    return tuple(
        (name, _text(before.get(name)), _text(after.get(name))) for name in names if before.get(name) != after.get(name)
    )


def _text(value: Scalar) -> str:
    return "none" if value is None else str(value)


def _digest(context: Mapping[str, Scalar]) -> str:
    """Equal for equal contexts."""
    text = json.dumps(dict(context), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


# The committed baselines of a project, at every commit that changed one.


WORKING_TREE = "working tree"
"""What stands for the hash of a baseline that is not committed."""
_COMMIT = re.compile(r"\x1e(?=[0-9a-f]{40,64}\x1f)")
_GONE = re.compile(r"0+")
"""Hash of a file that a commit removed."""

Skip = Callable[[str], None]
"""Called with one line about a file that cannot be used."""


@dataclass(frozen=True, slots=True)
class _Version:
    """A baseline file as one commit left it."""

    commit: str
    date: str
    subject: str
    path: str
    """From the top of the repository."""
    blob: str


def measurements(root: Path, folder: str, skip: Skip) -> Iterator[Measurement]:
    """Every baseline at every commit that changed it, the oldest first, then those that are not committed.

    The commits are those of the first-parent line of HEAD: a merge is one commit, with everything that it brings.

    Parameters
    ----------
    root, folder
        Root directory of the project and the folder of its baselines, relative to it or absolute.
    skip
        Called for files that cannot be used.

    Raises
    ------
    InputError
        There is no repository, or the folder is not in it.
    """
    base = (root / folder).resolve()
    top = top_of(root)
    if top is None:
        raise InputError(
            trouble(root) or f"{root} is in no git repository: name run files instead (perfdl history --runs FOLDER)"
        )
    if not base.is_relative_to(top.resolve()):
        raise InputError(f"the baselines folder {base} is not in the git repository {top}: set the folder with --dir")
    place = base.relative_to(top.resolve()).as_posix()
    if why := cut_off(top):
        skip(f"older commits are missing: {why}")
    versions = _versions(top, place)
    for version, data in zip(versions, blobs(top, [each.blob for each in versions], LIMIT), strict=True):
        where = f"{version.commit[:SHORT]}:{visible(version.path)}"
        if data is None:
            skip(f"{where} cannot be read, or is larger than {untrusted_files.size(LIMIT)}: skipped")
            continue
        try:
            yield of_baseline(data, version.commit, version.date, version.subject)
        except RecordError as error:
            skip(f"{where} {error}: skipped")
    yield from _read_uncommitted(top, place, skip)


def _versions(top: Path, place: str) -> list[_Version]:
    if commit_of(top, "HEAD") is None:
        # Nothing is committed yet.
        return []
    listed = read(
        top,
        *("log", "--first-parent", "-m", "--reverse", "--raw", "--no-abbrev", "--no-renames", "-z"),
        *("--format=%x1e%H%x1f%aI%x1f%s", "HEAD", "--", place),
        seconds=LOG_SECONDS,
    )
    found = []
    for block in _COMMIT.split(listed):
        head, *rest = (part.lstrip("\n") for part in block.split("\0"))
        if "\x1f" not in head:
            continue
        commit, date, subject = head.split("\x1f", 2)
        changes = zip(rest[::2], rest[1::2], strict=False)
        for change, path in changes:
            # ":100644 100644 1a... 2b... M"
            blob = change.split()[3]
            if is_baseline(_inside(path, place)) and not _GONE.fullmatch(blob):
                found.append(_Version(commit, date, subject, path, blob))
    return found


def _read_uncommitted(top: Path, place: str, skip: Skip) -> Iterator[Measurement]:
    """Baselines whose files differ from those of HEAD, or that git does not know yet."""
    if commit_of(top, "HEAD"):
        known, old = [], modified(top, "HEAD", place)
    else:
        known, old = ["--cached"], []
    new = names(top, "ls-files", "--others", "--exclude-standard", "-z", *known, "--", place)
    for path in sorted({*old, *new}):
        if not is_baseline(_inside(path, place)) or not (top / path).is_file():
            continue
        try:
            yield of_baseline(untrusted_files.read_bytes(top / path, LIMIT), WORKING_TREE, "", "uncommitted baseline")
        except RecordError as error:
            skip(f"{visible(path)} {error}: skipped")
        except OSError as error:
            skip(f"{visible(path)} cannot be read: {error.strerror}: skipped")


def _inside(path: str, place: str) -> str:
    """The path of a file from the baselines folder."""
    return path if place == "." else path.removeprefix(f"{place}/")
