"""Access to the operating system, to git and to parts of pytest without public names.

`import_path` keeps a project's modules from replacing the library's in new processes; `processes` kills whole process
groups, even after this process has exited, and makes SIGTERM and SIGHUP end a run like Ctrl-C (`processes.Ending`).
`clocks` has clocks that tests cannot replace, `device_lock` lets runs measure one after the other. `folders` makes
temporary directories and is the only module that deletes anything. `files` writes files atomically, `remote` reads
files at URLs, `git` runs git, `distributions` says what is installed. `pytest_internals` has everything that is used of
pytest without a public name.
"""
