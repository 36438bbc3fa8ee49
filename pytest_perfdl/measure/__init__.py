"""Inside the worker: the step runs here, and only here torch is imported, inside functions.

`commands` says what can be asked and answered, `program` executes it around the step, with one module per
pass (`timed_pass`, `profiled_pass`, `counted_pass`); `environment` looks at where it runs; `calibration` measures
what the machine can do at most, in a process of its own; `assemble` turns the
answers of several workers into a `Record`. `commands` and `assemble` are also used by the orchestrating
process and import nothing heavy.
"""
