"""The machine of a measurement: its state, its noise and its peak rates.

`proc` reads the kernel's files, `processors` what they say about CPUs, `visible_devices` which GPUs a run may use, and
`device_state` what the driver says of these while a test is measured. `state` observes other load and pins processes to
CPUs; `reference_load` times a fixed workload, to distinguish changes of the machine from changes of the code;
`proc.free_memory` reads the free memory.

`fitness` checks a machine for `perfdl check`; its results are `findings`. `known_problems` is the table of versions of
software that distort measurements or traces.

`rates` has the machine's rates: peak rates from data sheets or measured (`baselines/<machine ID>/machine.json`), and
what predictions need. `utilization` relates the work of a step to them.
"""
