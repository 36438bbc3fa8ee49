"""What every moment had to wait for, and the critical path that follows from it.

`device_order` says it of each device event, `waits` of host threads, whose activity is in `host_timeline`;
`critical_path` goes back from the end of the last step along what was waited for, by the steps of `walk`.
"""
