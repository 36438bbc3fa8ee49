"""Where a step's time goes: a closed account, whose classes add up to the step to the nanosecond.

`transfers` reads the direction and size of copies between host and device, and measures the wait for input.
`accounts.profile_tables` makes the account, by `accounts.device_accounts` on a trace with device events and by
`accounts.host_accounts` on others, with the operators of each step (`accounts.thread_operators`). `signatures` tells
whether steps do equal work. `parts` splits the same time by who launched it, in which module and from which line.
`peak` accounts for the memory at the peak of a step, from allocations that a recorder saw or, with
`peak.trace_accounts`, from a trace, and counts allocations; `snapshot_peak` does it from a snapshot of a device's
allocator.
"""
