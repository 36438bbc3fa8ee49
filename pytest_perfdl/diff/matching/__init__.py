"""Which operators and kernels of one step are which of another, where builds, devices and compilers rename them.

    matching = match.match(base, new)

`match` is the entry point, with one file per stage: `same_name`, `same_operator`, `order` and `fusion`; `groups` has
the data types, and `matched` ensures that every part is in one group. They rest on `names` and `cpp_names` (names
without what changes from build to build), `compilers` (what compiler-generated names say), `normalized` (a part as it
is compared) and `likeness` (the cost of matching two parts).

Pure functions of the parts alone: deterministic, and the same whichever side is called the baseline.
"""
