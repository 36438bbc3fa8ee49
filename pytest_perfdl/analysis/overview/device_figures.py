"""The device's time as one sum over the whole file: busy and idle, computing, communication and copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_perfdl.analysis.events.communication import communication_evidence, covered, evidence_counts
from pytest_perfdl.analysis.events.in_flight import in_flight, waiting_rows
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import Category, Trace


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Lengths of unions over all streams and devices of a file, nanoseconds: no moment counts twice."""

    span_ns: int
    """From the first device event's start to the last one's end."""
    busy_ns: int
    """|U(all device events)|."""
    idle_ns: int
    """`span_ns - busy_ns`: no event on any stream."""
    compute_ns: int
    """|U(compute)|: kernels that are not communication."""
    communication_ns: int
    """|U(comm)|, for which `communication_evidence` says what counts."""
    communication_overlapped_ns: int
    """|U(comm) and U(compute)|; copies hide nothing."""
    communication_exposed_ns: int
    """|U(comm) minus U(compute)|: `communication_ns - communication_overlapped_ns`."""
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
    compute = covered(trace, device[is_kernel & (evidence[device] < 0)])
    communication = covered(trace, communicating)
    copies = covered(trace, device[~is_kernel])
    kernels = compute.union(communication)
    busy = kernels.union(copies)
    ends = trace.start[device] + trace.duration[device]
    span = int(ends.max() - trace.start[device].min())
    overlapped = int(compute.within(communication.start, communication.end).sum())
    return DeviceFigures(
        span_ns=span,
        busy_ns=busy.length,
        idle_ns=span - busy.length,
        compute_ns=compute.length,
        communication_ns=communication.length,
        communication_overlapped_ns=overlapped,
        communication_exposed_ns=communication.length - overlapped,
        copies_ns=copies.length,
        exposed_copies_ns=busy.length - kernels.length,
        in_flight_communication_ns=in_flight(trace, communicating).length,
        waiting_communication_ns=covered(trace, waiting_rows(trace, communicating)).length,
        communication_evidence=evidence_counts(evidence),
    )
