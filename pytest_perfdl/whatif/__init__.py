"""What if: a trace as a graph of tasks that is edited and simulated.

    predict(Context(task_graph(trace)), "cuda_graph").gain

    graph = task_graph(trace)
    plan = Plan().scale(Select(name="gemm"), 0.5).remove(Select(operator="aten::dropout"))
    before, after = simulate(graph), simulate(plan.apply(graph))
    after.span_ns - before.span_ns, after.period_ns, quality(graph).trust

- `model` holds the words: tasks, edges, tracks. `graph` makes them of a trace: `evidence` asks the analyses,
  `host_tasks` cuts threads, `layout` numbers tasks, `host_edges` and `device_edges` say what each waits for, after
  Daydream's five kinds of dependency and those that Daydream lacks, with `lags`; `window` takes a part.
- `structure` compiles a graph for simulation, from `chains`, which only say that tasks of a track follow each other,
  and all other edges; `simulate` computes when every task starts and ends, `periods` how long its steps take, `path`
  which chain of tasks decides the span.
- `select` finds tasks, `edit` composes changes, `surgery`, `insertion` and `schedule` carry them out, `rederive` works
  out again what a program decides while it runs; `columns` copies what they leave as it was.
- `job` makes one graph of several ranks, which wait for each other where they have `meetings`.
- `quality` says how far the graph explains the trace, and whether a prediction from it deserves trust.
- `transform` is the registry of optimisations, `transforms` holds those that come with the package; they look things up
  in `facts`, `layers`, `lifetimes` (memory) and `machine` (constants). `predict` answers a question with an interval
  and a trust; `unprofiled` takes the profiler's own time off a graph first. `staged` puts layers on several devices,
  `strategy` searches for the best way to.

Source: Zhu, Phanishayee, Pekhimenko, "Daydream: Accurately Estimating the Efficacy of Optimizations for DNN Training",
USENIX ATC 2020 (tasks, primitives); Liang et al., "Lumos", MLSys 2025 (dependencies that are worked out at run time).
"""

from pytest_perfdl.whatif.edit import Plan, primitive
from pytest_perfdl.whatif.graph import task_graph
from pytest_perfdl.whatif.insertion import NewTask
from pytest_perfdl.whatif.model import EdgeKind, Edges, TaskGraph, TaskKind, Track
from pytest_perfdl.whatif.predict import Prediction, WhatIf, predict
from pytest_perfdl.whatif.quality import Quality, quality
from pytest_perfdl.whatif.select import Select
from pytest_perfdl.whatif.simulate import Simulation, simulate
from pytest_perfdl.whatif.transform import Change, Context, transform

__all__ = [
    "Change",
    "Context",
    "EdgeKind",
    "Edges",
    "NewTask",
    "Plan",
    "Prediction",
    "Quality",
    "Select",
    "Simulation",
    "TaskGraph",
    "TaskKind",
    "Track",
    "WhatIf",
    "predict",
    "primitive",
    "quality",
    "simulate",
    "task_graph",
    "transform",
]
