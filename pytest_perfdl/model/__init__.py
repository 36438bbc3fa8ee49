"""Measurements and limits as plain values, for all other packages.

- Measurements: `record` is the measurement of one test: `Record`, its calls, series and rows, the `Key` (machine ID)
  for which it is valid, and the findings on it, with a table of their codes. `metrics` is the table of built-in
  metrics, `step_part` a part of a step, `memory` the breakdown of a peak.
- Requirements: `limits` are limits and budgets of metrics, `waivers` known slowdowns that are accepted until a date.
- What a user asks for: `launch` of ranks, `shard` of a run, `selection` of a part of a trace, `cases` of a table.
- Files: `record_json` decodes records, which may come from others: it checks types, sizes and finiteness, and
  `untrusted_files` reads with a size limit. `json` makes plain data and JSON Schemas of values.
- Text: `units` parses and formats numbers, `kernel_names` shortens names of kernels, `copy_names` says what those of
  copies tell, `visible` makes foreign text safe to print.
- `errors` has all exceptions, `failures` those that fail a test.
"""
