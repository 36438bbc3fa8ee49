"""Splits the perf tests of a run into shards of about equal duration (`--perf-shard`).

Every machine with the same checkout gets the same shards: the split depends on the tests' ids and on their baselines,
not on the machine, nor on the order of the tests. Groups of tests are assigned one by one, the longest first, to the
shard with the least work so far. Then no two shards differ by more than the longest group (Graham, "Bounds on
Multiprocessing Timing Anomalies", 1969).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.run.scaling_curves.sizes import curve_key, sizes

if TYPE_CHECKING:
    from pytest_perfdl.run.collection import PerfTest

_ASSERTION = b"assert_scaling"


def shard_of_each(tests: Sequence[PerfTest], seconds: Mapping[str, float | None], count: int) -> dict[str, int]:
    """The shard of every test by its id, from 1.

    Parameters
    ----------
    tests
        All collected perf tests.
    seconds
        Expected duration by id; `None` if it is unknown, and then assumed to be the mean of the known ones.
    count
        Number of shards.
    """
    known = sorted(each for each in seconds.values() if each is not None)
    mean = math.fsum(known) / len(known) if known else 1.0
    whole = {name: mean if each is None else each for name, each in seconds.items()}
    return split([[test.item.nodeid for test in group] for group in together(tests)], whole, count)


def split(groups: Iterable[Sequence[str]], seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """The shard of every id, from 1; those of one group are in one shard.

    >>> split([["a"], ["b", "c"], ["d"]], {"a": 5, "b": 3, "c": 3, "d": 2}, 2)
    {'b': 1, 'c': 1, 'a': 2, 'd': 2}
    """
    # `fsum` does not depend on the order of what it adds.
    weighed = sorted((-math.fsum(seconds[name] for name in group), min(group), sorted(group)) for group in groups)
    loads = [0.0] * count
    found: dict[str, int] = {}
    for negative, _, names in weighed:
        least = min(range(count), key=loads.__getitem__)
        loads[least] -= negative
        found |= dict.fromkeys(names, least + 1)
    return found


def together(tests: Sequence[PerfTest]) -> list[list[PerfTest]]:
    """The tests in groups: all sizes of one curve must be measured in one run, other tests are groups by themselves.

    Which tests call `perf.assert_scaling` is known only when they run, so every file that mentions it is taken for one
    whose tests do.
    """
    groups = {test.item.nodeid: [test] for test in tests}
    first_of_curve: dict[object, str] = {}
    mentions: dict[Path, bool] = {}
    for test in tests:
        name = test.item.nodeid
        for axis in _axes(test, mentions):
            other = groups[first_of_curve.setdefault((axis, curve_key(test, axis)), name)]
            if other is not groups[name]:
                other += groups[name]
                groups |= dict.fromkeys((each.item.nodeid for each in other), other)
    return list({id(group): group for group in groups.values()}.values())


def _axes(test: PerfTest, mentions: dict[Path, bool]) -> list[str]:
    """Parameters over which the test may be a point of a curve; `mentions` is what is known of files."""
    numbers = sizes(test)
    if not numbers:
        return []
    path = test.item.path
    if path not in mentions:
        try:
            mentions[path] = _ASSERTION in path.read_bytes()
        except OSError:
            mentions[path] = False
    return list(numbers) if mentions[path] else [axis for axis in test.options.scaling or {} if axis in numbers]
