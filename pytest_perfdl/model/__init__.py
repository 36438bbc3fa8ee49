"""What is measured and what it is held to, as plain values; every other package uses them.

`record` is what one test measured: `Record`, its calls, series and rows, and the `Key` of machine and environment
that it is valid for. `step_part` names a piece of a step. `limits` are those of metrics, `units` how numbers are
written. `record_json` and `run_json` decode records and run files, which others may have written: they check types,
sizes and finiteness, and `untrusted_files` reads with a bound. `visible` makes foreign text safe to print. `errors`
are all exceptions, `failures` those by which a test fails.
"""
