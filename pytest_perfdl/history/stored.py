"""The baselines of a remote store, at every update that the store still has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pytest_perfdl.baseline.remote import RemoteStore
from pytest_perfdl.history.measurements import Measurement, is_baseline, of_baseline
from pytest_perfdl.model.errors import RecordError
from pytest_perfdl.model.visible import visible

Skip = Callable[[str], None]
"""Called with one line about an update that cannot be used."""


def measurements(store: RemoteStore, skip: Skip) -> Iterator[Measurement]:
    """What each update recorded, in the order of the recordings; the commits are those that were measured.

    An update that recorded nothing, such as one that `perfdl baseline migrate` wrote, is no point of its own.

    Parameters
    ----------
    skip
        Called for updates that cannot be used.

    Raises
    ------
    BaselineError
        The store cannot be read.
    """
    found: dict[tuple[object, ...], Measurement] = {}
    for file, name, data in store.versions():
        if not is_baseline(file):
            continue
        try:
            one = of_baseline(data, "", "", "")
        except RecordError as error:
            skip(f"{visible(f'{store.objects.url}/{name}')} {error}: skipped")
            continue
        values = tuple((metric, each.values) for metric, each in one.metrics.items())
        found[one.test, one.machine_id, one.date, values] = replace(one, commit=one.measured_commit)
    yield from sorted(found.values(), key=lambda each: each.date)
