"""A task graph from a trace, and one from the traces of several ranks.

`graph.task_graph` asks the analyses (`analyses`), cuts host threads into tasks (`host_tasks`), numbers them
(`layout`) and says what each waits for (`host_edges`, `device_edges`): Daydream's five kinds of dependency, and those
that Daydream lacks. `job` makes one graph of several ranks, which wait for each other where they have `rank_meetings`.
"""
