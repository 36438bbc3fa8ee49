"""Long columns: sorted by two keys, and numbered in the order of first appearance."""

from __future__ import annotations

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
