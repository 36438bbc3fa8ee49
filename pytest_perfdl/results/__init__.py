"""Results of a run as plain values: `judge` and `run` create them, `report` reads them.

`verdict` defines the verdicts: `MetricVerdict` for a metric, `Cause` for a cause, and the `Judgement` of a test. `run`
has a test's `Result` and the whole `Run`. `curve` is a test's time as a function of size, `suggestion` a piece of
advice with its predicted gain. `run_file` writes and reads `run.json`: its names of traces come from `trace_files`, its
causes of memory from `memory_causes`.
"""
