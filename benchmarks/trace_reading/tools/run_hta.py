"""Holistic Trace Analysis, or traceinsight, as it is called since: reading and the analyses that others have too.

    PYTHON run_hta.py TRACE

The whole file is analysed (`include_last_profiler_step`), nothing is drawn, one rank.
"""

from __future__ import annotations

import logging
import os
import warnings
from importlib import metadata
from typing import Any

import measure

warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis

logging.disable(logging.CRITICAL)


def version() -> str:
    for name in ("traceinsight", "HolisticTraceAnalysis"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def main() -> None:
    path = os.path.abspath(measure.path_argument())  # noqa: PTH100 - what the tool takes is text
    kept: dict[str, Any] = {}

    def load() -> None:
        folder = os.path.dirname(path)  # noqa: PTH120
        kept["trace"] = TraceAnalysis(trace_files={0: path}, trace_dir=folder, include_last_profiler_step=True)

    def analyse() -> measure.Failures:
        trace = kept["trace"]
        return measure.attempt(
            {
                "busy and idle": lambda: trace.get_temporal_breakdown(visualize=False),
                "idle by cause": lambda: trace.get_idle_time_breakdown(ranks=[0], visualize=False),
                "communication overlap": lambda: trace.get_comm_comp_overlap(visualize=False),
                "kernels": lambda: trace.get_gpu_kernel_breakdown(visualize=False),
                "launches": lambda: trace.get_cuda_kernel_launch_stats(ranks=[0], visualize=False),
                "queues": lambda: trace.get_queue_length_summary(ranks=[0]),
            }
        )

    measure.report({"read": load, "read + analyses": analyse}, lambda: {"version": version()})


main()
