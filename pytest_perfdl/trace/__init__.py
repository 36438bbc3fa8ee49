"""Reading and writing Chrome traces of the PyTorch profiler.

All times are integer nanoseconds. Metrics are computed in `analysis`.

- Reading: `reader` makes a frozen `Trace` of numpy columns from a file that kineto wrote since 2021: it cuts the text
  into slices, `decode` makes events of each (with repairs), `events` has their types and exact times, and `columns`
  converts them to columns, and decides by its category what an event is, such as a copy (`columns._ALIASES`). `times`
  corrects impossible times. `formats` names what a file is instead of a trace.
- Data: `model` holds `Trace` and `Category`; `raw_args` the arguments of events as text; `arrays` sorts, groups,
  searches and numbers.
- Meaning: `annotations` finds step annotations, `collective_names` says which names are collectives', `recordings`
  splits a file into which traces of several processes were merged.
- Writing: `writer` makes a Chrome trace with strict nesting; `exemplar` extracts one step of a trace, and
  `exemplar.with_memory` adds memory events that another run recorded.
- `memory_snapshot` reads dumps of PyTorch's device allocator.
"""

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace.exemplar import ALL_RANKS, exemplar, read_exemplar, unpack, with_memory
from pytest_perfdl.trace.model import Category, MemoryEvents, Trace
from pytest_perfdl.trace.reader import loads, read
from pytest_perfdl.trace.writer import Event, compress, write

__all__ = [
    "ALL_RANKS",
    "Category",
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
