"""What the operating system, and pytest behind its public names, are asked for.

`folders` makes temporary folders and is the one place that deletes; `processes` ends whole process groups, also after
this process is gone; `signals` lets SIGTERM and SIGHUP end a run as Ctrl-C does. `files` writes files whole
or not at all, `git` asks git. `pytest_internals` is all that is used of pytest without a public name.
"""
