"""`pytest_perfdl.trace.read` and the analyses that the other tools offer too.

python run_ours.py TRACE
"""

from __future__ import annotations

from typing import Any

import measure

from pytest_perfdl import __version__
from pytest_perfdl.trace import read


def analyses(trace: Any) -> dict[str, measure.Work]:
    """By subject; imported here, so that reading can be measured while one of them is broken."""
    from pytest_perfdl.analysis.account.accounts import device_accounts
    from pytest_perfdl.analysis.overview.device import communication_overlap, device_figures
    from pytest_perfdl.analysis.overview.tables import kernel_table, launch_stats

    return {
        "busy and idle": lambda: device_figures(trace),
        "idle by cause": lambda: device_accounts(trace),
        "communication overlap": lambda: communication_overlap(trace),
        "kernels": lambda: kernel_table(trace),
        "launches and queues": lambda: launch_stats(trace),
    }


def main() -> None:
    path = measure.path_argument()
    kept: dict[str, Any] = {}
    try:
        analyses(None)
        broken = ""
    except ImportError as error:
        broken = measure.last_line(error)

    def load() -> None:
        kept["trace"] = read(path)

    def analyse() -> measure.Failures:
        return measure.Failures({"all": broken}) if broken else measure.attempt(analyses(kept["trace"]))

    measure.report({"read": load, "read + analyses": analyse}, lambda: {"version": __version__})


main()
