"""Changes of a task graph, composed before any is made.

`select` finds tasks and `edit.Plan` composes changes. Applying a plan carries them out: `surgery` removes tasks and
links their neighbors, and adds or moves tasks (`surgery.insert_tasks`, `surgery.move_tasks`); `edit.reschedule` lets a
stream choose among the tasks that wait.
"""
