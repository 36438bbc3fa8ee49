"""The device's time over a whole file, and how well its steps use the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.account.accounts import profile_tables
from pytest_perfdl.analysis.efficiency.roofline import occupancy_est, sm_efficiency_est
from pytest_perfdl.analysis.events.communication import (
    communication_evidence,
    covered,
    evidence_counts,
    exposed_communication,
)
from pytest_perfdl.analysis.events.device_record import in_flight, waiting_rows
from pytest_perfdl.analysis.events.steps import device_time
from pytest_perfdl.trace.model import Category, Trace, once

# The device's time as one sum over the whole file: busy and idle, computing, communication and copies.


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Lengths of unions over all streams and devices of a file, nanoseconds: no moment counts twice.

    All are lengths inside `device_time`.
    """

    devices: int
    """How many devices there are events of."""
    span_ns: int
    """From the first device event's start to the last one's end, without the time between steps."""
    busy_ns: int
    """|U(all device events)|."""
    idle_ns: int
    """`span_ns - busy_ns`: no event on any stream."""
    compute_ns: int
    """|U(compute)|: kernels that are not communication."""
    communication_ns: int
    """|U(comm)|, for which `communication_evidence` says what counts."""
    communication_overlapped_ns: int
    """`communication_ns - communication_exposed_ns`."""
    communication_exposed_ns: int
    """|U over the devices(comm minus compute of the device)|: what another device computes hides nothing."""
    copies_ns: int
    """|U(copies)|, memsets included."""
    exposed_copies_ns: int
    """|U(copies) minus U(compute) minus U(comm)|."""
    in_flight_communication_ns: int
    """|U(transfers without a kernel)|, not part of `communication_ns`: see `in_flight`."""
    waiting_communication_ns: int
    """|U(kernels that only wait to be notified)|, a part of `communication_ns`: see `waiting_rows`."""
    communication_evidence: Mapping[str, int]
    """Number of communication kernels by what showed that they are."""

    @property
    def busy_share(self) -> float:
        """`busy_ns / span_ns`, from 0 to 1; 0 for a span without length."""
        return self.busy_ns / self.span_ns if self.span_ns else 0.0

    @property
    def overlap_share(self) -> float | None:
        """`communication_overlapped_ns / communication_ns`, from 0 to 1; `None` without communication."""
        return self.communication_overlapped_ns / self.communication_ns if self.communication_ns else None


@once
def device_figures(trace: Trace) -> DeviceFigures | None:
    """Sum up the device events of a file (kernels, copies, memsets); `None` if it has none."""
    device = trace.device_rows()
    if len(device) == 0:
        return None
    evidence = communication_evidence(trace)
    is_kernel = trace.category[device] == Category.KERNEL
    communicating = device[evidence[device] >= 0]
    time = device_time(trace)
    compute = covered(trace, device[is_kernel & (evidence[device] < 0)]).intersection(time)
    communication = covered(trace, communicating).intersection(time)
    copies = covered(trace, device[~is_kernel]).intersection(time)
    kernels = compute.union(communication)
    busy = kernels.union(copies)
    span = time.length
    exposed = exposed_communication(trace).intersection(time).length
    return DeviceFigures(
        devices=len(np.unique(trace.pid[device])),
        span_ns=span,
        busy_ns=busy.length,
        idle_ns=span - busy.length,
        compute_ns=compute.length,
        communication_ns=communication.length,
        communication_overlapped_ns=communication.length - exposed,
        communication_exposed_ns=exposed,
        copies_ns=copies.length,
        exposed_copies_ns=busy.length - kernels.length,
        in_flight_communication_ns=in_flight(trace, communicating).intersection(time).length,
        waiting_communication_ns=covered(trace, waiting_rows(trace, communicating)).intersection(time).length,
        communication_evidence=evidence_counts(evidence),
    )


def communication_overlap(trace: Trace) -> float | None:
    """Share of the communication during which the device computes, from 0 to 1; `None` without communication."""
    figures = device_figures(trace)
    return None if figures is None else figures.overlap_share


# How well steps use a device: shares from the device's own account, without any limit of the machine.


LATE = ("launch latency", "operator overhead", "Python and host")
"""Classes of idle time in which the device waits for the host to launch, other than for input or synchronizing."""
TENSOR_CORES = re.compile(
    r"[hs]884|[hs]1688|16816|i8816|hmma|imma|wgmma|xmma|tensorop|nvjet|fmha|flash_(fwd|bwd)|dgrad_1x1_stride_2x2"
    r"|first_layer_wgrad|c1_k1|direct_group|sm\d+_.*gemm|MFMA|_MT\d+x\d+x\d+_MI",
    re.IGNORECASE,
)
"""Names of kernels that compute on tensor cores (AMD: matrix cores): those of PyTorch's TensorBoard plugin, and of what
cuBLAS, CUTLASS, flash attention and hipBLASLt have named their kernels since."""


def device_utilization(trace: Trace) -> Mapping[str, float]:
    """Shares of a trace with device events, from 0 to 1, by name of metric; empty without any.

    - `device_busy`: |U(all device events)| over the span from the first one's start to the last one's end.
    - `sm_efficiency`, `occupancy`: see `sm_efficiency_est`, `occupancy_est`; absent where kernels have no geometry.
    - `launch_gap`: time of the steps in which the device is idle because the host launches late (`LATE`).
    - `tensor_core_share`: durations of the kernels named as in `TENSOR_CORES`, over those of all kernels.
    - `exposed_copies`: copies behind which nothing computes or communicates, over the span.
    - `overlap`: communication during which something computes, over all communication; absent without any.
    - `exposed_communication`: communication behind which nothing computes, over the span; absent without any.
    """
    figures = device_figures(trace)
    if figures is None or not figures.span_ns:
        return {}
    tables = profile_tables(trace)
    account, windows = tables.account, sum(tables.step_ns)
    found: dict[str, float | None] = {
        "device_busy": figures.busy_share,
        "sm_efficiency": sm_efficiency_est(trace),
        "occupancy": None,
        "launch_gap": sum(account.get(name, 0) for name in LATE) / windows if windows else None,
        "tensor_core_share": _tensor_core_share(trace),
        "exposed_copies": figures.exposed_copies_ns / figures.span_ns,
        "overlap": figures.overlap_share,
    }
    if (occupancy := occupancy_est(trace)) is not None:
        found["occupancy"] = occupancy / 100
    if figures.communication_ns:
        found["exposed_communication"] = figures.communication_exposed_ns / figures.span_ns
    return {name: value for name, value in found.items() if value is not None}


def _tensor_core_share(trace: Trace) -> float | None:
    """`None` where no kernel takes time."""
    kernels = trace.rows(Category.KERNEL)
    time = trace.duration[kernels]
    whole = int(time.sum())
    on_them = trace.named(TENSOR_CORES.search)[trace.name[kernels]]
    return int(time[np.asarray(on_them)].sum()) / whole if whole else None
