"""What every moment had to wait for, and the critical path that follows from it.

`device_order` says it of each device event; `waits` says when each host thread worked, and when it waited and for what.
`critical_path` goes back from the end of the last step along what was waited for, by the steps of `critical_path.Walk`.
"""
