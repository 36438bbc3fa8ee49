"""What bounds the step, in one sentence with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_perfdl.analysis.account.host_account import OPERATOR_CLASSES
from pytest_perfdl.analysis.account.step_account import ProfileTables, profile_tables
from pytest_perfdl.analysis.events.communication import communication_kernels
from pytest_perfdl.analysis.events.device_record import unrecorded_device
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.waiting.critical_path import CriticalPath, critical_path
from pytest_perfdl.model.kernel_names import MARK, short_name
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.trace.model import Category, Trace

Kind = Literal[
    "input", "launch", "communication", "copy", "synchronization", "dependency", "compute", "python", "mixed", "none"
]

CPU_INPUT_SHARE = 0.25
"""On CPU-only traces waiting for data counts first from here on: workers take it away without touching the model."""

MIXED_SHARE = 0.1
"""A cause that at most this share of the step would go with does not bound it."""

EVIDENCE_SHARE = 0.01
"""Smaller classes are left out of the evidence."""

NAME_LENGTH = 60

_ACCOUNT: Mapping[Kind, tuple[str, ...]] = {
    "input": ("input",),
    "launch": ("launch latency", "operator overhead", "Python and host"),
    "communication": ("exposed communication",),
    "copy": ("exposed copies",),
    "synchronization": ("synchronization",),
    "dependency": ("device wait", "unattributed"),
    "compute": ("compute",),
}
"""Classes of the device's account by what bounds a step that is mostly made of them."""

_PATH: Mapping[Kind, tuple[str, ...]] = {
    "input": ("input",),
    "launch": ("launch latency", "operator", "runtime call", "Python and host"),
    "communication": ("communication",),
    "copy": ("copy",),
    "synchronization": ("synchronization",),
    "dependency": ("kernel gap", "unexplained wait"),
    "compute": ("compute",),
}
"""The same for the critical path."""

_WAITS: Mapping[str, str] = {
    "launch latency": "for launches to arrive",
    "operator overhead": "while the host runs operators and runtime calls",
    "Python and host": "while the host runs Python",
    "device wait": "for streams, events or other ranks",
    "unattributed": "for reasons that the trace does not show",
}
"""What the device waits for in some classes of idle time."""
_NO_STEPS = "Unknown: the trace has no operators, calls or kernels."


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What bounds the step first."""

    kind: Kind
    text: str
    """One sentence with its numbers."""
    share: float
    """Share of the steps' time that the classes of this kind have in the account, 0 to 1."""
    evidence: tuple[str, ...]
    """The numbers behind it, one line each: the breakdown, the critical path."""


def bottleneck(trace: Trace, tables: ProfileTables | None = None, path: CriticalPath | None = None) -> Bottleneck:
    """Say what bounds the steps of a trace first.

    With device events: the kind with the largest possible gain, which is the smaller of its share of the device's
    closed account and its share of the critical path. The account bounds it because time that the device computes
    meanwhile stays; the path because what is off it holds nothing up. CPU-only: input from `CPU_INPUT_SHARE` on, else
    the largest class of the account. Equal shares are decided by a fixed order, so that equal traces get equal
    answers. `tables` and `path` may be given if they are known already.
    """
    tables = profile_tables(trace) if tables is None else tables
    total = sum(tables.step_ns)
    joined = launches(trace)
    if total == 0:
        return Bottleneck("none", _no_time(tables, steps_of(trace, joined)), 0.0, ())
    path = critical_path(trace) if path is None else path
    account = {name: ns / total for name, ns in tables.account.items()}
    on_path = {name: ns / path.span_ns for name, ns in path.by_class.items()}
    evidence = (
        f"{plural(len(tables.step_ns), 'step')} of {format_quantity(total / len(tables.step_ns), 'ns')} (mean)",
        f"step time: {_listed(account)}",
        f"critical path: {_listed(on_path)}",
    )
    if unrecorded := unrecorded_device(trace, joined):
        text = f"Unknown: {unrecorded}, and no device event: the device was idle, or its work was not recorded."
        return Bottleneck("none", text, 0.0, evidence)
    if not tables.on_device:
        return _on_cpu(tables, account, evidence)
    shares = {kind: sum(account[name] for name in names) for kind, names in _ACCOUNT.items()}
    gains = {kind: min(shares[kind], sum(on_path[name] for name in _PATH[kind])) for kind in _ACCOUNT}
    kind = max(gains, key=lambda kind: gains[kind])
    if gains[kind] < MIXED_SHARE:
        return Bottleneck(
            "mixed", f"No single bottleneck: {_listed(account)} of the step.", max(shares.values()), evidence
        )
    return Bottleneck(kind, _sentence(kind, trace, tables, account), shares[kind], evidence)


def _no_time(tables: ProfileTables, steps: Steps) -> str:
    if steps.left_out:
        return "Unknown: no step of the trace can be used."
    return "All steps in the trace have a duration of 0." if tables.steps else _NO_STEPS


def _sentence(kind: Kind, trace: Trace, tables: ProfileTables, account: Mapping[str, float]) -> str:
    names = _ACCOUNT[kind]
    what = amount(tables, sum(account[name] for name in names))
    largest = max(names, key=lambda name: account[name])
    most = f"{format_percent(account[largest], signed=False)} {_WAITS[largest]}" if largest in _WAITS else ""
    most = f", {most}" if most else ""
    if account["compute"] > sum(account[name] for name in names) and kind != "compute":
        # Compute is the largest part then, and a reader may wonder why it is not named.
        most += ", the largest avoidable part"
    if kind == "input":
        return f"Input-bound: the device waits for input data in {what}{most}."
    if kind == "launch":
        return f"Launch-bound: the device waits for the host in {what}{most}."
    if kind == "synchronization":
        return f"Synchronization-bound: the device waits while the host returns from blocking calls in {what}{most}."
    if kind == "dependency":
        return f"Dependency-bound: the device waits in {what}{most}."
    name, ns = _longest(kind, trace)
    longest = f"the longest is {short(name)} with {format_quantity(ns / tables.steps, 'ns')}/step"
    if kind == "compute":
        return f"Compute-bound: kernels compute in {what}; {longest}."
    thing = "communication runs" if kind == "communication" else "copies run"
    return f"{kind.capitalize()}-bound: {thing} without overlapping compute in {what}{most}; {longest}."


def _on_cpu(tables: ProfileTables, account: Mapping[str, float], evidence: tuple[str, ...]) -> Bottleneck:
    largest = max(account, key=lambda name: account[name])
    if account["input"] >= CPU_INPUT_SHARE:
        largest = "input"
    share = account[largest]
    what = amount(tables, share)
    if largest == "input":
        most = ", the largest avoidable part" if share < max(account.values()) else ""
        return Bottleneck("input", f"Input-bound: the step waits for input data in {what}{most}.", share, evidence)
    if largest == "communication":
        text = f"Communication-bound: the step waits for collectives in {what}."
        return Bottleneck("communication", text, share, evidence)
    if largest == "Python and host":
        text = f"Python-bound: the CPU runs Python between operators in {what}."
        return Bottleneck("python", text, share, evidence)
    share = sum(account[name] for name in OPERATOR_CLASSES)
    what = amount(tables, share)
    row = next(row for row in tables.rows if row.kind == "operator")
    longest = f"{short(row.name)} with {format_percent(row.ns / sum(tables.step_ns), signed=False)}"
    return Bottleneck("compute", f"Compute-bound: operators run in {what}; the largest is {longest}.", share, evidence)


def _longest(kind: Kind, trace: Trace) -> tuple[str, int]:
    """Name and nanoseconds of the kernel, collective or copy that takes longest in the whole trace."""
    rows = trace.device_rows()
    is_communication = communication_kernels(trace)[rows]
    is_kernel = trace.category[rows] == Category.KERNEL
    chosen = {"compute": is_kernel & ~is_communication, "communication": is_communication}.get(kind, ~is_kernel)
    totals = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(totals, trace.name[rows[chosen]], trace.duration[rows[chosen]])
    # Of equals the first by name, so that the order of a file decides nothing.
    longest = min(range(len(totals)), key=lambda name: (-totals[name], trace.names[name]))
    return trace.names[longest], int(totals[longest])


def amount(tables: ProfileTables, share: float) -> str:
    """A share of the mean step, in words: '33.1% of the step (58.80 ms of 177.6 ms)'."""
    mean = sum(tables.step_ns) / len(tables.step_ns)
    part, whole = format_quantity(share * mean, "ns"), format_quantity(mean, "ns")
    return f"{format_percent(share, signed=False)} of the step ({part} of {whole})"


def short(name: str) -> str:
    """A name that fits into a sentence, of a kernel without namespaces and arguments."""
    name = short_name(name)
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - len(MARK)] + MARK


def _listed(shares: Mapping[str, float]) -> str:
    """Shares in words, the largest first; equals by name."""
    some = sorted((-share, name) for name, share in shares.items() if share >= EVIDENCE_SHARE)
    return ", ".join(f"{name} {format_percent(-share, signed=False)}" for share, name in some)
