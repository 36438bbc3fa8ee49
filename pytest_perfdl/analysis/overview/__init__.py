"""Everything that `perfdl trace` says of one file: `qualify.summarize` computes all of it, once.

Tables over the whole file (`operator_tables`, `kernel_tables`, `launch_stats`, `memory_timeline`, `device_figures`),
of which `selection` takes a part; what bounds the step in one sentence (`bottleneck`), what costs time besides
(`trace_findings`), and what a reader must know before believing any of it (`integrity`, and of the software that
recorded it `software`).
"""
