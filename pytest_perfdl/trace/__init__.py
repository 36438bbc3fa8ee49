"""Reading and writing Chrome traces of the PyTorch profiler.

`read` and `loads` make a frozen `Trace` of numpy columns from files that kineto wrote since 2021; `write` makes a
Chrome trace with strict nesting; `exemplar` extracts one step of a trace, and `with_memory` adds memory events that
another run recorded. `recordings` splits a trace into which several processes were merged. `memory_snapshot` reads
dumps of PyTorch's device allocator. All times are integer nanoseconds. Metrics are computed in `analysis`.
"""

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace.exemplar import ALL_RANKS, exemplar, read_exemplar, unpack, with_memory
from pytest_perfdl.trace.model import Category, Counters, MemoryEvents, Trace
from pytest_perfdl.trace.reader import loads, read
from pytest_perfdl.trace.writer import Event, compress, write

__all__ = [
    "ALL_RANKS",
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
