"""Chrome traces of the PyTorch profiler in, columns out, and out again.

`read` and `loads` make a frozen `Trace` of numpy columns from what kineto wrote, 2021 to today; `write` makes a
Chrome trace that nests strictly; `exemplar` cuts one step out of a trace and `with_memory` adds the memory that
another recorded. `memory_snapshot` reads what PyTorch's device allocator dumps. Inside, every time is an integer
number of nanoseconds. Figures are made in `analysis`.
"""

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace.exemplar import exemplar, read_exemplar, unpack
from pytest_perfdl.trace.model import Category, Counters, MemoryEvents, Trace
from pytest_perfdl.trace.reader import loads, read
from pytest_perfdl.trace.step_memory import with_memory
from pytest_perfdl.trace.writer import Event, compress, write

__all__ = [
    "Category",
    "Counters",
    "Event",
    "MemoryEvents",
    "Trace",
    "TraceError",
    "compress",
    "exemplar",
    "loads",
    "read",
    "read_exemplar",
    "unpack",
    "with_memory",
    "write",
]
