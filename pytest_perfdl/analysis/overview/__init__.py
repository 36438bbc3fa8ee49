"""Everything that `perfdl trace` says of one file: `summary.summarize` computes all of it, once.

`selection` takes the part of a trace that the user asks for. Over the whole file, `tables` computes the rows of kernels
and operators and the figures of launches (their columns are in `report.trace.tables`), `memory_timeline` has memory
over time, `device` the device's busy and idle time. `findings` says what bounds the step (`findings.bottleneck`), what
costs time besides (`findings.trace_findings`), and what a reader must know before believing the figures
(`findings.trace_integrity`, `findings.software_problems`). `summary` joins them.
"""
