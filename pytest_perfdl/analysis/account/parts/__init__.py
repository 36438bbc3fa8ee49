"""A step as the sum of its parts: every nanosecond of it belongs to one kernel, operator or class of idle time.

`step_parts` gives the parts of every step of a trace with who launched them, in which module and from which line, so
that two steps can be subtracted from each other without a remainder. `labels` says which part an event is of,
`host_parts` and `device_parts` whose a moment is, `sums` adds it all up, `delays` takes off what others had of the
processor.
"""

from pytest_perfdl.analysis.account.parts.delays import without_delays
from pytest_perfdl.analysis.account.parts.steps import step_parts
from pytest_perfdl.analysis.account.parts.sums import StepParts

__all__ = ["StepParts", "step_parts", "without_delays"]
