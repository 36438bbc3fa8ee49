"""What the operating system is asked for.

`folders` makes temporary folders and is the one place that deletes; `processes` ends whole process groups, also after
this process is gone; `signals` lets SIGTERM and SIGHUP end a run as Ctrl-C does.
"""
