"""Changes of a task graph, composed before any is made.

`select` finds tasks and `edit.Plan` composes changes; applying a plan carries them out: `surgery` removes tasks and
links their neighbors, `insertion` adds some, `schedule` lets a stream choose among those that wait.
"""
