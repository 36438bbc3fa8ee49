"""Where a step's time goes: a closed account, whose classes add up to the step to the nanosecond.

`accounts.profile_tables` makes it, from `host_account` on a trace without device events and `device_account` on
others, with the `operators` of each step. `memory`, `transfers` and `inputs` count allocations, copies, and the wait
for data. `peak` says what the memory at the peak of a step consists of, from allocations that a recorder saw;
`trace_peak` and `snapshot_peak` the same from a trace and from a snapshot of a device's allocator. `parts` splits the
same time by who launched it, in which module and from which line.
"""
