"""When every task of a graph starts and ends.

`structure` compiles a graph for simulation, from chains (`structure.Chains`), which only say that tasks of a track
follow each other, and all other edges; `structure.rederive` works out again what a program decides while it runs.
`simulate` computes the times, how long the steps take (`simulate.step_times`), which chain of tasks decides the span
(`simulate.path_of`). `quality` says how far the graph explains the trace, and whether a prediction from it deserves
trust.
"""
