"""Points out of the records of a run: tests that differ in their sizes only, told by their ids.

`test_step[batch=8]` is the size 8 of `test_step`, and `test_step[bf16-batch=8]` that of `test_step[bf16]`. A bare
number, as in `test_step[8]`, needs a name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.record import Record
from pytest_perfdl.scaling.points import Point, Points

_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_SCALED = ("threads", "ranks")
_PART = re.compile(rf"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<size>{_NUMBER})(?=-|$)|(?P<other>[^-]+)")


@dataclass(frozen=True, slots=True)
class Member:
    """One size of a test."""

    sizes: Mapping[str, float]
    record: Record


@dataclass(frozen=True, slots=True)
class Members:
    """All sizes of a test."""

    source: str
    """The run file, with which errors begin."""
    each: tuple[Member, ...]


def sizes_of(nodeid: str, names: Sequence[str] = ()) -> tuple[str, dict[str, float]]:
    """The test without its sizes, and the sizes.

    >>> sizes_of("test_gpt.py::test_step[bf16-batch=8]"), sizes_of("test_step[8-2]", ["batch", "workers"])
    (('test_gpt.py::test_step[bf16]', {'batch': 8.0}), ('test_step', {'batch': 8.0, 'workers': 2.0}))

    Parameters
    ----------
    nodeid
        Node id.
    names
        Of the bare numbers, in their order; those beyond belong to the test.
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


def members_of(records: Sequence[Record], source: str = "", *, test: str = "", names: Sequence[str] = ()) -> Members:
    """The sizes of one test: what points, and the parts of steps, are made of.

    Parameters
    ----------
    records
        Of all tests of a run.
    source
        The run file, with which errors begin.
    test
        Text that the test's id contains, where several tests of the run have sizes.
    names
        Of bare numbers in the ids, in their order.

    Raises
    ------
    ScalingError
        Not one test has sizes.
    """
    with naming(source):
        families = _families(records, names, test)
        if not families:
            raise ScalingError(
                "no test has sizes in its id, as in test_step[batch=8]; if the ids have numbers only, as in "
                "test_step[8], name the axes with --axes"
            )
        if len(families) > 1:
            raise ScalingError(f"several tests have sizes in their ids: select one with -k: {', '.join(families)}")
        ((_, each),) = families.items()
        for other in each[1:]:
            _check_like(each[0].record, other.record)
    return Members(source, tuple(each))


def _check_like(first: Record, other: Record) -> None:
    """Refuse sizes of different machines or environments; threads and ranks may be what is scaled."""
    one, another = ({**record.key.parts, **record.context} for record in (first, other))
    for name in sorted(one.keys() | another.keys()):
        if name not in _SCALED and one.get(name) != another.get(name):
            raise ScalingError(
                f"{first.test} was measured with {name} {one.get(name)}, but {other.test} with {another.get(name)}"
            )


def points_of(
    members: Members,
    *,
    metric: str = "step_time",
    intrinsic: Sequence[str] | None = None,
    extrinsic: Sequence[str] | None = None,
) -> Points:
    """The points of a test; each repeat is one.

    Parameters
    ----------
    metric
        A metric in nanoseconds by its full name.
    intrinsic, extrinsic
        Kinds of the factors, as `Points.of` sorts them.

    Raises
    ------
    ScalingError
        The test has no such metric, or it is not a time.
    """
    with naming(members.source):
        points = [point for each in members.each for point in _points(each.sizes, each.record, metric)]
        return Points.of(points, intrinsic=intrinsic, extrinsic=extrinsic)


@contextlib.contextmanager
def naming(source: str) -> Iterator[None]:
    """Around what may find fault with a file: its name begins the error."""
    try:
        yield
    except ScalingError as error:
        raise ScalingError(f"{source}: {error}" if source else str(error)) from None


def _families(records: Sequence[Record], names: Sequence[str], test: str) -> Mapping[str, list[Member]]:
    found: dict[str, list[Member]] = {}
    for record in records:
        family, sizes = sizes_of(record.test, names)
        if sizes and test in family:
            found.setdefault(family, []).append(Member(sizes, record))
    return found


def _points(sizes: Mapping[str, float], record: Record, metric: str) -> list[Point]:
    series: Any = record.metrics().get(metric)
    if series is None:
        raise ScalingError(
            f"{record.test} has no metric {metric}; available metrics: {', '.join(sorted(record.metrics()))}"
        )
    if series.unit != "ns":
        raise ScalingError(f"{metric} is in {series.unit!r}, not a time")
    return [Point(sizes, value) for value in series.values]
