"""Where a step's time goes: a closed account, whose classes add up to the step to the nanosecond.

`step_account.profile_tables` makes it, from `host_account` on a trace without device events and `device_account` on
others, with the `operators` of each step. `memory`, `transfers` and `inputs` count allocations, copies, and the wait
for data. `parts` splits the same time by who launched it, in which module and from which line.
"""
