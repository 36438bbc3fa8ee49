"""What the measurement runs on, and whether it can be relied on.

`state` tells what others did meanwhile and binds processes to cores; `reference_load` times work of ours, so that a
change of the machine's speed is not taken for one of the code; `free_memory` is what is left of it. `fitness`
examines a machine as a whole for `perfdl check`.

What it can do at most is in `peaks` (data sheets) and `constants` (measured, `baselines/<key>/machine.json`);
`utilization` holds a step's operators against that.
"""
