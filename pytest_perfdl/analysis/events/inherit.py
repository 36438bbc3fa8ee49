"""What a row has by itself, handed down the call tree, over the autograd engine and to the device."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.analysis.events.autograd import forward_of
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.tree import CallTree, launching_operator
from pytest_perfdl.trace.model import I32, Trace


def inherited(trace: Trace, tree: CallTree, own: I32) -> I32:
    """For each row the value, at least 0, of the nearest of itself and its ancestors that has one; -1 for none.

    A backward operator without a value of its own takes that of its forward operator (see `forward_of`), and what
    runs inside it inherits that before anything around it: on CPUs the engine runs inside the frame that calls
    `backward()`, which says nothing about the layer. A device event takes the value of the call that launched it,
    without one that of its launching operator.
    """
    if not (own >= 0).any():
        return own
    value = _handed_down(tree, own)
    forward = forward_of(trace)
    backward = np.flatnonzero((forward >= 0) & (own < 0))
    given = own.copy()
    # Where a backward pass recomputes a forward one (checkpoints), values arrive one pass after the other.
    while len(backward) and (value[forward[backward]] != given[backward]).any():
        given[backward] = value[forward[backward]]
        value = _handed_down(tree, given)
    joined = launches(trace)
    operator = launching_operator(trace, tree, joined)[joined.device]
    source = np.where(joined.linked, joined.call, operator)
    value[joined.device] = np.where(source >= 0, value[source], -1)
    return value


def _handed_down(tree: CallTree, own: I32) -> I32:
    source = tree.nearest(own >= 0)
    return np.where(source >= 0, own[source], -1).astype(np.int32)
