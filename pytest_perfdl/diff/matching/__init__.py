"""Which operators and kernels of one step are which of another, where builds, devices and compilers rename them.

    matching = match.match(base, new)

`names` removes from names what changes from build to build, reads what compiler-generated names say, and has a part as
it is compared (`names.About`). `stages` has the data types (`stages.Group`, `stages.Matching`), the cost of matching
two parts (`stages.costs`), and the stages by name, by launching operator, and by order and likeness. `match` is the
entry point: it runs the stages in order, then those for fused operators, and enters every part in exactly one group.

Pure functions of the parts alone: deterministic, and the same whichever side is called the baseline.
"""
