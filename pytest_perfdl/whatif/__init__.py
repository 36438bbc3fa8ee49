"""What if: a trace as a graph of tasks that is edited and simulated.

    predict(Context(task_graph(trace)), "cuda_graph").gain

    graph = task_graph(trace)
    plan = Plan().scale(Select(name="gemm"), 0.5).remove(Select(operator="aten::dropout"))
    before, after = simulate(graph), simulate(plan.apply(graph))
    after.span_ns - before.span_ns, after.period_ns, quality(graph).trust

- `model` holds the types: tasks, edges, tracks. `from_trace` makes a graph of a trace, or of those of several ranks;
  `unprofiled` takes the profiler's own time off it.
- `simulation` computes when every task starts and ends, and how far the graph explains the trace.
- `editing` finds tasks and composes changes of them.
- `transform` is the registry of optimizations, `transforms` holds those that come with the package. They look things up
  in `facts` (costs, gradients), `transform.lifetimes` (memory), `machine` (constants, of which `measured_constants`
  measures some), `collectives` (what they exchange and cost) and `rank_work` (how the work of ranks varies).
- `predict` answers a question with an interval and a trust, and says which gain is worthwhile. `advice` finds what
  wastes time and the optimization for it, `strategy` searches for the best way to spread layers over devices,
  `counterfactual` says what each cause of a change costs the step.

Source: Zhu, Phanishayee, Pekhimenko, "Daydream: Accurately Estimating the Efficacy of Optimizations for DNN Training",
USENIX ATC 2020 (tasks, primitives); Liang et al., "Lumos", MLSys 2025 (dependencies that are worked out at run time).
"""

from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.editing.select import Select
from pytest_perfdl.whatif.from_trace.graph import task_graph
from pytest_perfdl.whatif.predict import predict
from pytest_perfdl.whatif.simulation.simulate import simulate
from pytest_perfdl.whatif.transform import Change, Context, transform

__all__ = ["Change", "Context", "Plan", "Select", "predict", "simulate", "task_graph", "transform"]
