"""Figures from a `Trace`: pure functions that read columns and return frozen values.

`step_windows` says which time belongs to which step; `profile_tables` what a step's time is made of, as a
closed account; `memory_figures`, `copies` and `communication_overlap` one subject each. All times are integer
nanoseconds. The definitions are in the functions' docstrings.

Here are those that measuring needs. The others are in modules of their own, which a measured process has no need to
import: `summary.summarize` computes all that `perfdl trace` says, from `critical_path`, `roofline`, `operator_tables`,
`kernel_tables`, `launch_stats`, `memory_timeline`, `trace_findings` and the rest; `ranks` compares processes.
"""

from pytest_perfdl.analysis.communication import communication_overlap
from pytest_perfdl.analysis.intervals import Intervals
from pytest_perfdl.analysis.memory import DeviceMemory, MemoryFigures, memory_figures
from pytest_perfdl.analysis.steps import StepWindow, step_windows
from pytest_perfdl.analysis.tables import Integrity, ProfileTables, TableRow, profile_tables
from pytest_perfdl.analysis.transfers import Copies, copies

__all__ = [
    "Copies",
    "DeviceMemory",
    "Integrity",
    "Intervals",
    "MemoryFigures",
    "ProfileTables",
    "StepWindow",
    "TableRow",
    "communication_overlap",
    "copies",
    "memory_figures",
    "profile_tables",
    "step_windows",
]
