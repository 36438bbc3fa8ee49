"""Code that runs in the worker: the step runs here, and torch is imported only here, inside functions.

`commands` defines the protocol. `environment` describes the machine and its software, and prepares the process;
`process_group` joins the ranks of a test. `program` executes commands around the step: `sizes` says how many steps,
`loops` what one measured step is, and each pass has a module (`timed_pass`, `profiled_pass`, `counted_pass`,
`memory_pass`); `cases` executes those for the cases of a table, and `global_state` puts back what a case changed.
`device` alone names a backend of torch, and `flushing` empties caches before steps (`cache="cold"`). `compiling` counts
what torch.compile did, `injected_delay` slows steps down for `--perf-inject`, `optional` keeps the failure of a part
from ending a measurement. `calibration` measures peak rates of the machine, and replays operators of a trace, in a
separate process. The orchestrating process also uses `commands`, `sizes` and `loops`, which import nothing heavy.
"""
