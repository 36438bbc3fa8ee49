"""Measured points: the time of a step at given sizes, from columns or from the tests of a run file."""

from __future__ import annotations

import contextlib
import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.record import Record

# Measured points: the time of a step at given sizes, as columns, checked once where they come in.


F64 = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

_TIMES = {"time_s": 1e9, "time_ms": 1e6, "time_us": 1e3, "time_ns": 1.0}
"""Names of the column of times, with nanoseconds per unit."""
LARGEST = 1e18
"""Largest factor, and longest time in nanoseconds (31 years): powers of them and products of those stay finite."""
SMALLEST = 1e-18
"""Smallest factor but 0, and shortest time in nanoseconds, for the same reason."""


Point = tuple[Mapping[str, float], float]
"""One measurement: the factors' values and the time in nanoseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Measurements as columns of equal length, one row per measurement.

    Intrinsic factors describe the algorithm (layers, channels, operations), extrinsic ones scale it from outside
    (batch size, chunks of data, processors). Rows with equal factors are replicates of one configuration.
    """

    columns: Mapping[str, F64]
    """One column per factor, finite and not negative."""
    ns: F64
    """Times, positive and within `SMALLEST` and `LARGEST`."""
    intrinsic: tuple[str, ...]
    extrinsic: tuple[str, ...]

    @classmethod
    def of(
        cls,
        points: Iterable[Point],
        *,
        intrinsic: Sequence[str] | None = None,
        extrinsic: Sequence[str] | None = None,
    ) -> Points:
        """Make columns of points.

        Where both kinds are named, other factors are left out; where one is, the rest are of the other kind; where
        none is, all are intrinsic.

        Raises
        ------
        ScalingError
            No points, a named factor that a point lacks, a negative factor, a time that is not positive, or a value
            that is not finite or not within `SMALLEST` and `LARGEST`.
        """
        rows = list(points)
        if not rows:
            raise ScalingError("the input contains no points")
        inner, outer = _kinds(tuple(rows[0][0]), intrinsic, extrinsic)
        for number, row in enumerate(rows, 1):
            with naming(f"point {number}"):
                _check(row, inner + outer)
        columns = {name: np.array([factors[name] for factors, _ in rows], dtype=np.float64) for name in inner + outer}
        return cls(columns, np.array([ns for _, ns in rows], dtype=np.float64), inner, outer)

    def __len__(self) -> int:
        return len(self.ns)

    @property
    def factors(self) -> tuple[str, ...]:
        """Every factor, intrinsic ones first."""
        return self.intrinsic + self.extrinsic

    @property
    def varying(self) -> tuple[str, ...]:
        """The factors with more than one value: of the others nothing can be learnt."""
        return tuple(name for name in self.factors if np.ptp(self.columns[name]) > 0)

    def configurations(self) -> list[Rows]:
        """Rows of each configuration, in the order of their first measurements."""
        rows: dict[tuple[float, ...], list[int]] = {}
        for at, key in enumerate(zip(*(self.columns[name].tolist() for name in self.factors), strict=True)):
            rows.setdefault(key, []).append(at)
        return [np.array(found, dtype=np.intp) for found in rows.values()]

    def take(self, rows: Rows) -> Points:
        """The measurements of some rows."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Points(columns, self.ns[rows], self.intrinsic, self.extrinsic)

    def without(self, rows: Rows) -> Points:
        """All measurements but those of some rows."""
        return self.take(np.setdiff1d(np.arange(len(self), dtype=np.intp), rows))

    def replicate_spread(self) -> float | None:
        """Pooled coefficient of variation of replicates, a fraction; None where no configuration was measured twice.

        sqrt(sum over configurations of sum ((t - mean) / mean)^2 / sum of (replicates - 1)): no model's error can be
        expected below it.
        """
        squares, freedom = 0.0, 0
        for rows in self.configurations():
            times = self.ns[rows]
            squares += float((((times - times.mean()) / times.mean()) ** 2).sum())
            freedom += len(rows) - 1
        return math.sqrt(squares / freedom) if freedom else None


def read_csv(path: Path, *, intrinsic: Sequence[str] | None = None, extrinsic: Sequence[str] | None = None) -> Points:
    """Read points from a CSV file with a header: one column per factor and one of times.

    The times are in `time_s`, `time_ms`, `time_us` or `time_ns`. Factors are sorted into kinds as `Points.of` does;
    columns that are left out may hold anything. Empty lines are skipped.

    Raises
    ------
    ScalingError
        One line that begins with the file's name and the number of the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ScalingError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        return _read_lines(reader, intrinsic, extrinsic)
    except (ScalingError, csv.Error) as error:
        raise ScalingError(f"{path}:{max(reader.line_num, 1)}: {error}") from None


def _read_lines(
    reader: Iterable[list[str]], intrinsic: Sequence[str] | None, extrinsic: Sequence[str] | None
) -> Points:
    lines = iter(reader)
    header = [name.strip() for name in next(lines, [])]
    times = [name for name in header if name in _TIMES]
    if len(times) != 1:
        raise ScalingError(f"the header needs exactly one of the columns {', '.join(_TIMES)}")
    if "" in header:
        raise ScalingError(f"column {header.index('') + 1} has no name")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ScalingError(f"column {twice[0]!r} appears twice")
    inner, outer = _kinds(tuple(name for name in header if name != times[0]), intrinsic, extrinsic)
    points: list[Point] = []
    for line in lines:
        if not any(cell.strip() for cell in line):
            continue
        if len(line) != len(header):
            raise ScalingError(f"expected {len(header)} values, as in the header, got {len(line)}")
        cells = dict(zip(header, line, strict=True))
        factors = {name: _number(cells[name], name) for name in inner + outer}
        points.append((factors, _number(cells[times[0]], times[0]) * _TIMES[times[0]]))
        _check(points[-1], inner + outer)
    return Points.of(points, intrinsic=inner, extrinsic=outer)


def _number(text: str, column: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ScalingError(f"{text.strip()!r} in column {column} is not a number") from None


def _check(point: Point, names: tuple[str, ...]) -> None:
    factors, ns = point
    for name in names:
        if name not in factors:
            raise ScalingError(f"factor {name} is missing")
        value, said = factors[name], f"factor {name} is {factors[name]:g}; it must be"
        if not (math.isfinite(value) and value >= 0):
            raise ScalingError(f"{said} finite and not negative")
        if value > LARGEST:
            raise ScalingError(f"{said} at most {LARGEST:g}: choose a larger unit")
        if 0 < value < SMALLEST:
            raise ScalingError(f"{said} 0 or at least {SMALLEST:g}: choose a smaller unit")
    if not (math.isfinite(ns) and ns > 0):
        raise ScalingError(f"the time is {ns:g} ns; it must be finite and positive")
    if not SMALLEST <= ns <= LARGEST:
        raise ScalingError(f"the time is {ns:g} ns; it must be from {SMALLEST:g} to {LARGEST:g} ns")


def _kinds(
    names: tuple[str, ...], intrinsic: Sequence[str] | None, extrinsic: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The intrinsic and the extrinsic factors among names."""
    for name in (*(intrinsic or ()), *(extrinsic or ())):
        if name not in names:
            raise ScalingError(f"there is no factor {name!r}; known factors: {', '.join(names) or 'none'}")
    both = sorted(set(intrinsic or ()) & set(extrinsic or ()))
    if both:
        raise ScalingError(f"factor {both[0]!r} cannot be both intrinsic and extrinsic")
    if intrinsic is None:
        inner = tuple(name for name in names if name not in (extrinsic or ()))
    else:
        inner = tuple(dict.fromkeys(intrinsic))
    if extrinsic is not None:
        outer = tuple(dict.fromkeys(extrinsic))
    else:
        outer = () if intrinsic is None else tuple(name for name in names if name not in intrinsic)
    if not inner + outer:
        raise ScalingError("the input contains no factors")
    return inner, outer


# Points out of the records of a run: tests that differ in their sizes only, told by their ids.
#
# `test_step[batch=8]` is the size 8 of `test_step`, and `test_step[bf16-batch=8]` that of `test_step[bf16]`. A bare
# number, as in `test_step[8]`, needs a name.


_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_SCALED = ("threads", "ranks")
_PART = re.compile(rf"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<size>{_NUMBER})(?=-|$)|(?P<other>[^-]+)")


Member = tuple[Mapping[str, float], Record]
"""One size of a test: the factors' values and what was measured."""


def sizes_of(nodeid: str, names: Sequence[str] = ()) -> tuple[str, dict[str, float]]:
    """The test without its sizes, and the sizes.

    >>> sizes_of("test_gpt.py::test_step[bf16-batch=8]"), sizes_of("test_step[8-2]", ["batch", "workers"])
    (('test_gpt.py::test_step[bf16]', {'batch': 8.0}), ('test_step', {'batch': 8.0, 'workers': 2.0}))

    `names` are those of the bare numbers, in their order; numbers beyond belong to the test.
    """
    test, bracket, inside = nodeid.partition("[")
    if not bracket or not inside.endswith("]"):
        return nodeid, {}
    unnamed = list(names)
    sizes: dict[str, float] = {}
    others = []
    for part in _PART.finditer(inside[:-1]):
        name = part["name"] or (unnamed.pop(0) if part["size"] and unnamed else "")
        if name:
            sizes[name] = float(part["size"])
        else:
            others.append(part[0])
    return (f"{test}[{'-'.join(others)}]" if others else test), sizes


def members_of(records: Sequence[Record], *, test: str = "", names: Sequence[str] = ()) -> list[Member]:
    """The sizes of one test of a run: what points, and the parts of steps, are made of.

    Where several tests have sizes, `test` is text that the id of the one contains; `names` are those of bare numbers
    in the ids, in their order.

    Raises
    ------
    ScalingError
        Not one test has sizes.
    """
    families: dict[str, list[Member]] = {}
    for record in records:
        family, sizes = sizes_of(record.test, names)
        if sizes and test in family:
            families.setdefault(family, []).append((sizes, record))
    if not families:
        raise ScalingError(
            "no test has sizes in its id, as in test_step[batch=8]; if the ids have numbers only, as in "
            "test_step[8], name the axes with --axes"
        )
    if len(families) > 1:
        raise ScalingError(f"several tests have sizes in their ids: select one with -k: {', '.join(families)}")
    (members,) = families.values()
    for _, record in members[1:]:
        _check_like(members[0][1], record)
    return members


def _check_like(first: Record, other: Record) -> None:
    """Refuse sizes of different machines or environments; threads and ranks may be what is scaled."""
    one, another = ({**record.key.parts, **record.context} for record in (first, other))
    for name in sorted(one.keys() | another.keys()):
        if name not in _SCALED and one.get(name) != another.get(name):
            raise ScalingError(
                f"{first.test} was measured with {name} {one.get(name)}, but {other.test} with {another.get(name)}"
            )


def points_of(
    members: Sequence[Member],
    *,
    metric: str = "step_time",
    intrinsic: Sequence[str] | None = None,
    extrinsic: Sequence[str] | None = None,
) -> Points:
    """The points of a test; each repeat is one. The metric is one in nanoseconds, by its full name.

    Raises
    ------
    ScalingError
        The test has no such metric, or it is not a time.
    """
    points = [point for each in members for point in _points(each, metric)]
    return Points.of(points, intrinsic=intrinsic, extrinsic=extrinsic)


@contextlib.contextmanager
def naming(source: str) -> Iterator[None]:
    """Around what may find fault with a file, or a point: its name begins the error."""
    try:
        yield
    except ScalingError as error:
        raise ScalingError(f"{source}: {error}") from None


def _points(member: Member, metric: str) -> list[Point]:
    sizes, record = member
    known = record.metrics()
    if metric not in known:
        raise ScalingError(f"{record.test} has no metric {metric}; available metrics: {', '.join(sorted(known))}")
    if known[metric].unit != "ns":
        raise ScalingError(f"{metric} is in {known[metric].unit!r}, not a time")
    return [(sizes, value) for value in known[metric].values]
