"""The account of a step's peak from a trace that recorded memory: operators, modules and, with stacks, lines."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.analysis.account.peak import Allocation, Recorded, Window, peak_account
from pytest_perfdl.analysis.events.enclosing import innermost
from pytest_perfdl.analysis.events.modules import module_paths
from pytest_perfdl.analysis.events.operator_time import operator_at
from pytest_perfdl.analysis.events.source_lines import source_lines
from pytest_perfdl.analysis.events.steps import step_windows
from pytest_perfdl.analysis.events.threads import backward_rows, input_rows, optimizer_rows
from pytest_perfdl.analysis.events.tree import call_tree
from pytest_perfdl.analysis.overview.memory_timeline import device_name
from pytest_perfdl.model.memory import MemoryAccount, Phase
from pytest_perfdl.trace.model import Rows, Trace


def trace_accounts(trace: Trace) -> tuple[MemoryAccount, ...]:
    """For each device the account of the step with the highest peak, devices with most allocated first.

    A trace has no objects, so that categories are told from times: what the forward pass allocates and an operator of
    the backward pass frees is an activation, what the backward pass allocates and leaves a gradient; what was there
    before the first memory event is `other`. Empty for a trace without memory events, or without addresses (2021).
    """
    memory = trace.memory
    if not len(memory) or (memory.address == -1).any() or (memory.allocated < 0).any():
        return ()
    kinds = sorted(set(zip(memory.device_type.tolist(), memory.device_id.tolist(), strict=True)))
    found = [_account(trace, *kind) for kind in kinds]
    return tuple(sorted(found, key=lambda account: -account.peak_bytes))


def _account(trace: Trace, device_type: int, device_id: int) -> MemoryAccount:
    memory = trace.memory
    own = np.flatnonzero((memory.device_type == device_type) & (memory.device_id == device_id))
    name = device_name(device_type, device_id)
    windows = [Window(each.host_start, each.host_end) for each in step_windows(trace)]
    # Nothing says of what is before the first event that is freed later when it was allocated: it is there all along.
    base = int(memory.allocated[own[0]] - memory.bytes[own[0]])
    allocations, foreign, lines = _allocations(trace, own, name)
    windows = windows or [Window(int(memory.time[own[0]]), int(memory.time[own[-1]]) + 1)]
    base -= sum(size for _, _, size in foreign)

    def at_most(window: Window) -> int:
        inside = own[(memory.time[own] >= window.begin) & (memory.time[own] < window.end)]
        return int(memory.allocated[inside].max(initial=0))

    highest = max(range(len(windows)), key=lambda index: at_most(windows[index]))
    recorded = Recorded(allocations, foreign, windows[: highest + 1], lambda place: lines[place])
    return peak_account(recorded, {}, name, before=max(0, base))


def _allocations(
    trace: Trace, own: Rows, device: str
) -> tuple[list[Allocation], list[tuple[int, int, int]], list[tuple[str, ...]]]:
    """The allocations of a device, what was freed that was there before, and the lines of each place."""
    memory = trace.memory
    tree = call_tree(trace)
    modules, paths = module_paths(trace, tree)
    lines, texts = source_lines(trace, tree)
    nodes = backward_rows(trace)
    moments = memory.time[own], memory.pid[own], memory.tid[own]
    backward, optimizer, fetching = (
        innermost(trace, rows, *moments) >= 0 for rows in (nodes, optimizer_rows(trace), input_rows(trace))
    )
    operators = operator_at(trace, *moments)
    last_backward = int(trace.end[nodes].max(initial=-1))
    known: list[tuple[str, ...]] = [(), *((text,) for text in texts)]
    allocations: list[Allocation] = []
    foreign: list[tuple[int, int, int]] = []
    open_at: dict[int, Allocation] = {}
    latest = 0
    columns = (own, memory.time[own], memory.address[own], memory.bytes[own], operators)
    for index, (event, time, address, size, row) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        time = latest = max(latest + 1, time)
        in_backward = bool(backward[index])
        if size < 0:
            each = open_at.pop(address, None)
            if each is None:
                foreign.append((time, address, -size))
                continue
            each.end = time
            each.saved |= in_backward and not each.by_node
            continue
        outside: Phase = "optimizer" if optimizer[index] else "input" if fetching[index] else "forward"
        each = Allocation(
            address=address,
            bytes=size,
            begin=time,
            device=device,
            place=int(lines[row]) + 1 if row >= 0 else 0,
            module=paths[modules[row]] if row >= 0 and modules[row] >= 0 else "",
            operator=trace.name_of(row) if row >= 0 else "",
            phase="backward" if in_backward else outside,
            by_node=in_backward,
            reserved=int(memory.reserved[event]),
        )
        open_at[address] = each
        allocations.append(each)
    for each in allocations:
        each.gradient = each.by_node and (each.end is None or each.end > last_backward)
    return allocations, foreign, known
