"""Rows of many columns at once: what an edit leaves as it was is copied in long runs, not row by row."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.model import Rows

Column = npt.NDArray[Any]

_RUN = 512
"""Rows that runs of neighbors must have on average to be copied run by run: fewer are gathered as fast."""


def taker(rows: Rows | npt.NDArray[np.bool_], count: int | None = None) -> Callable[..., Column]:
    """What takes some rows of any column, into a new one.

    Parameters
    ----------
    rows
        Numbers of 0 or more, or one boolean per row.
    count
        Of columns in two parts, which are given one by one, the length of the first; rows count on in the second.
    """
    if rows.dtype == bool:
        # Where the mask changes, runs begin and end alternately.
        changes = np.flatnonzero(np.diff(rows, prepend=False, append=False))
        first, behind, total = changes[::2], changes[1::2], int(np.count_nonzero(rows))
    else:
        breaks = np.diff(rows) != 1
        if count is not None:
            breaks |= rows[1:] == count
        ends = np.flatnonzero(breaks)
        first, behind = rows[np.append(0, ends + 1)[: len(rows)]], rows[np.append(ends, -1)[: len(rows)]] + 1
        total = len(rows)
    if not total or len(first) * _RUN > total:
        return lambda *parts: (parts[0] if count is None else np.concatenate(parts))[rows]
    split = sys.maxsize if count is None else count
    runs = [
        (0, slice(since, until)) if since < split else (1, slice(since - split, until - split))
        for since, until in zip(first.tolist(), behind.tolist(), strict=True)
    ]
    return lambda *parts: np.concatenate([parts[part][run] for part, run in runs])
