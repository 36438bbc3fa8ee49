"""Measurements and limits as plain values, for all other packages.

`record` is the measurement of one test: `Record`, its calls, series and rows, and the `Key` (machine ID) for which it
is valid. `step_part` is a part of a step. `limits` are limits and budgets of metrics, `units` formats numbers.
`record_json` and `run_json` decode records and run files, which may come from others: they check types, sizes and
finiteness, and `untrusted_files` reads with a size limit. `visible` makes foreign text safe to print. `errors` has all
exceptions, `failures` those that fail a test.
"""
