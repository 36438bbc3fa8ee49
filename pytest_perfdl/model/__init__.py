"""Measurements and limits as plain values, for all other packages.

`record` is the measurement of one test: `Record`, its calls, series and rows, and the `Key` (machine ID) for which it
is valid. `step_part` is a part of a step. `limits` are limits and budgets of metrics, `units` formats numbers.
`record_json` decodes records, which may come from others: it checks types, sizes and finiteness, and `untrusted_files`
reads with a size limit. `json` makes plain data and JSON Schemas of values. `visible` makes foreign text safe to print.
`errors` has all exceptions, `failures` those that fail a test.
"""
