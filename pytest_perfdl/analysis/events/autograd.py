"""Which operator of the forward pass a backward operator belongs to."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.analysis.events.operator_args import operator_args
from pytest_perfdl.analysis.events.threads import AUTOGRAD
from pytest_perfdl.analysis.events.tree import pair_codes
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I64, Rows, Trace


@once
def forward_of(trace: Trace) -> Rows:
    """For each row that is a backward operator the row of its forward operator; -1 for all others, and where unknown.

    Backward operators are those that autograd's engine runs: `AddmmBackward0` and the
    `autograd::engine::evaluate_function: AddmmBackward0` around it, not the operators inside them. They carry the
    `Sequence number` of the graph node that they evaluate. An operator of the forward pass carries the number that
    the next node of its thread will get, so several may carry one number: the last of them to start, before the
    backward operator did, made the node.

    Numbers are counted by thread. `Fwd thread id` tells the forward threads apart, but is no thread id of the
    system: each stands for the thread whose forward operators carry most of its numbers, of equal ones the one
    that ran first and that no smaller id stands for. In traces without it, backward operators are known by name.
    """
    found = np.full(len(trace), -1, dtype=np.intp)
    args = operator_args(trace)
    operators = np.flatnonzero(args.sequence >= 0)
    number, forward_thread = args.sequence[operators], args.forward_thread[operators]
    named = trace.named(AUTOGRAD.match)
    is_backward = (forward_thread > 0) | ((forward_thread < 0) & named[trace.name[operators]])
    forward, backward = operators[~is_backward], operators[is_backward]
    if len(forward) == 0 or len(backward) == 0:
        return found
    thread = pair_codes(trace.pid[forward], trace.tid[forward])
    ids = pair_codes(trace.pid[backward], forward_thread[is_backward])
    # A number on a thread is one key; those of backward operators that no thread carries match nothing.
    keys = np.unique(number, return_inverse=True)[1].reshape(-1)
    count = int(keys.max()) + 1
    stands_for = _threads_of_ids(ids, keys[is_backward], thread, keys[~is_backward], trace, forward, backward)
    asked = stands_for[ids] * count + keys[is_backward]
    offered = thread * count + keys[~is_backward]
    found[backward] = _last_before(asked, trace.start[backward], offered, trace.start[forward], forward)
    return found


def _threads_of_ids(
    ids: Rows, asked: Rows, thread: Rows, offered: Rows, trace: Trace, forward: Rows, backward: Rows
) -> Rows:
    """The thread that each forward thread id stands for, by how many numbers they share; -1 for none."""
    begins = np.full(int(thread.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begins, thread, trace.start[forward])
    owner = np.zeros(len(begins), dtype=np.int64)
    owner[thread] = trace.pid[forward]
    numbers = {int(code): np.unique(offered[thread == code]) for code in np.unique(thread)}
    found = np.full(int(ids.max()) + 1, -1, dtype=np.intp)
    for code in np.unique(ids).tolist():
        own = np.unique(asked[ids == code])
        pid = trace.pid[backward[np.argmax(ids == code)]]
        ranked = sorted(
            (-len(np.intersect1d(own, theirs, assume_unique=True)), other in found, int(begins[other]), other)
            for other, theirs in numbers.items()
            if owner[other] == pid
        )
        if ranked and ranked[0][0] < 0:
            found[code] = ranked[0][-1]
    return found


def _last_before(asked: Rows, at: I64, offered: Rows, started: I64, rows: Rows) -> Rows:
    """For each asked key the row that offers it and started last, before the given moment; -1 for none."""
    is_asked = np.concatenate((np.zeros(len(offered), dtype=bool), np.ones(len(asked), dtype=bool)))
    key = np.concatenate((offered, asked))
    order = np.lexsort((~is_asked, np.concatenate((started, at)), key))
    place = np.where(is_asked[order], -1, np.arange(len(order)))
    latest = np.maximum.accumulate(place)
    known = latest >= 0
    match = np.zeros(len(order), dtype=bool)
    match[known] = key[order][latest[known]] == key[order][known]
    found = np.full(len(asked), -1, dtype=np.intp)
    hits = np.flatnonzero(match & is_asked[order])
    found[order[hits] - len(offered)] = rows[order[latest[hits]]]
    return found
