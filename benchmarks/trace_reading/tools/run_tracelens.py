"""AMD's TraceLens: reading with its call tree, and the analyses that others have too (it has no launch statistics).

    PYTHON run_tracelens.py TRACE

Kernels without a flow from their launch are counted in (`include_unlinked_kernels`), as all other tools do.
"""

from __future__ import annotations

import logging
import warnings
from importlib import metadata
from typing import Any

import measure

warnings.simplefilter("ignore")
from TraceLens import TreePerfAnalyzer

logging.disable(logging.CRITICAL)


def main() -> None:
    path = measure.path_argument()
    kept: dict[str, Any] = {}

    def load() -> None:
        kept["trace"] = TreePerfAnalyzer.from_file(profile_filepath=path, include_unlinked_kernels=True)

    def operators() -> object:
        trace = kept["trace"]
        return trace.get_df_kernel_launchers_summary(trace.get_df_kernel_launchers())

    def analyse() -> measure.Failures:
        trace = kept["trace"]
        return measure.attempt(
            {
                "busy, idle and overlap": trace.get_df_gpu_timeline,
                "operators by kernel time": operators,
                "kernels": trace.get_df_kernels,
            }
        )

    measure.report({"read": load, "read + analyses": analyse}, lambda: {"version": metadata.version("TraceLens")})


main()
