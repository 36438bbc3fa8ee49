"""When every task of a graph starts and ends.

`structure` compiles a graph for simulation, from `chains`, which only say that tasks of a track follow each other,
and all other edges; `simulate` computes the times with `lags`, `periods` how long the steps take, `path` which chain
of tasks decides the span. `rederive` works out again what a program decides while it runs, `window` takes a part of a
graph. `quality` says how far the graph explains the trace, and whether a prediction from it deserves trust.
"""
