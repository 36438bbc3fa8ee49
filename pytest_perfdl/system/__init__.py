"""Access to the operating system, to git and to parts of pytest without public names.

`folders` makes temporary directories and is the only module that deletes anything; `processes` kills whole process
groups, even after this process has exited; `signals` makes SIGTERM and SIGHUP end a run like Ctrl-C. `files` writes
files atomically, `git` runs git. `pytest_internals` has everything that is used of pytest without a public name.
"""
