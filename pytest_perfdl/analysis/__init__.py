"""Numbers from a `Trace`: pure functions that read columns and return frozen values.

A trace's rows first get what they belong to (`events`), then the time of each step is accounted for (`account`), what
waited for what is worked out (`waiting`), and times are compared with the hardware (`efficiency`); `overview` joins all
that into what `perfdl trace` says. `ranks` compares the processes of one job. All times are integer nanoseconds, and
definitions are in the functions' docstrings.

Imported here is what counting needs; what profiled steps need is imported by name (`workers.forks`).
"""

from pytest_perfdl.analysis.account.accounts import ProfileTables, profile_tables
from pytest_perfdl.analysis.account.peak import MemoryFigures, memory_figures

__all__ = ["MemoryFigures", "ProfileTables", "memory_figures", "profile_tables"]
