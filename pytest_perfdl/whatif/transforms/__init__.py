"""The optimizations that come with the package, one family a file; importing this registers them.

`precision` and `layout` change what operators run on; `optimizer`, `launching` and `operators` how many there are;
`waiting` and `loading` what the host waits for; `sizes` how much there is to do; `memory` trades time for memory;
`parallel` and `collectives` spread work over devices.
"""

from pytest_perfdl.whatif.transforms import (
    collectives,
    launching,
    layout,
    loading,
    memory,
    operators,
    optimizer,
    parallel,
    precision,
    sizes,
    waiting,
)

__all__ = [
    "collectives",
    "launching",
    "layout",
    "loading",
    "memory",
    "operators",
    "optimizer",
    "parallel",
    "precision",
    "sizes",
    "waiting",
]
