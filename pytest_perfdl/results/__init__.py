"""Results of a run as plain values: `judge` and `run` create them, `report` reads them.

`verdict` defines the verdicts: `MetricVerdict` for a metric, `Cause` for a cause, and the `Judgement` of a test.
`curve` has the types of what is more than one value: a curve over sizes, a history, the ranks of a step. `run` has a
test's `Result`, with its suggestions, and the whole `Run`. `run_file` writes and reads `run.json`: its names of traces
come from `trace_files`, which decides which are kept, its causes of memory from `memory_causes`. `numbers` has a
metric's numbers under names for other programs.
"""
