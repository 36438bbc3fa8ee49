"""How well steps use a device: shares from the device's own account, without any limit of the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from pytest_perfdl.analysis.account.step_account import profile_tables
from pytest_perfdl.analysis.efficiency.sm import occupancy_est, sm_efficiency_est
from pytest_perfdl.analysis.overview.device_figures import device_figures
from pytest_perfdl.trace.model import Category, Trace

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
