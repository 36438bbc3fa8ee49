"""Code that runs in the worker: the step runs here, and torch is imported only here, inside functions.

`commands` defines the protocol, `program` executes commands around the step, with one module per pass (`timed_pass`,
`profiled_pass`, `counted_pass`); `environment` describes the machine and its software; `calibration` measures peak
rates of the machine in a separate process. The orchestrating process also uses `commands`, `sizes` and `loops`, which
import nothing heavy.
"""
