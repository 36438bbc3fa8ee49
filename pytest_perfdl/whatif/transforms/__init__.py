"""The optimizations that come with the package, one family per file. Importing this package registers them.

- `precision` and `layout` change the element type and the memory format.
- `optimizer`, `launching` and `operators` reduce the number of operators and launches.
- `waiting` and `loading` remove waits of the host.
- `sizes` changes the amount of work.
- `memory` trades time for memory.
- `parallel` and `collectives` distribute work over devices, `ranks` and `buckets` change a job of several ranks.
"""

from pytest_perfdl.whatif.transforms import (
    buckets,
    collectives,
    launching,
    layout,
    loading,
    memory,
    operators,
    optimizer,
    parallel,
    precision,
    ranks,
    sizes,
    waiting,
)

__all__ = [
    "buckets",
    "collectives",
    "launching",
    "layout",
    "loading",
    "memory",
    "operators",
    "optimizer",
    "parallel",
    "precision",
    "ranks",
    "sizes",
    "waiting",
]
