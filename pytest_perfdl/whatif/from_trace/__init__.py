"""A task graph from a trace, and one from the traces of several ranks.

`layout` collects what the analyses say (`layout.evidence_of`), cuts host threads into tasks (`layout.thread_tasks`) and
numbers all tasks (`layout.layout_of`); `edges` says what each waits for: Daydream's five kinds of dependency, and those
that Daydream lacks. `graph.task_graph` makes the graph of both. `job` makes one graph of several ranks, which wait for
each other in collectives and messages (`job.meetings`).
"""
