"""Long columns: sorted by two keys, grouped, searched, and numbered in the order of first appearance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

# Sorting of long columns by two keys.


def sorted_by(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Positions by the first key, then by the second, then as given: as `np.lexsort((second, first))`.

    Made for keys most of which the first tells apart: sorting by two keys costs many times as much as by one.
    """
    order = np.argsort(first, kind="stable")
    keys = first[order]
    same = keys[1:] == keys[:-1]
    if same.any():
        tied = np.flatnonzero(np.concatenate((same, [False])) | np.concatenate(([False], same)))
        rows = order[tied]
        order[tied] = rows[np.lexsort((second[rows], first[rows]))]
    return order


def groups(*keys: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.intp]]:
    """Positions at which all keys are equal, ascending; groups come in the order of the first key, then the second."""
    order = np.lexsort(keys[::-1])
    differs = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    return (own for own in np.split(order, np.flatnonzero(differs) + 1) if len(own))


class Lookup:
    """For each key the first of the values that have it."""

    def __init__(self, keys: npt.NDArray[np.int64], values: npt.NDArray[np.intp]) -> None:
        self._keys, first = np.unique(keys, return_index=True)
        self._values = values[first]

    def find(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """The value of each key, -1 for none."""
        if not len(self._keys):
            return np.full(len(keys), -1, dtype=np.intp)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[place] == keys, self._values[place], -1)


# Numbers objects in the order in which they first appear.


Key = TypeVar("Key")


class Numbering(dict[Key, int]):
    """The number of each thing: asked for one that is new, it gives it the next.

    >>> numbering = Numbering[str]()
    >>> list(map(numbering.__getitem__, "abac"))
    [0, 1, 0, 2]
    """

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        return number
