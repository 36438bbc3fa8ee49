"""Performance regression tests for deep learning, in pytest.

Packages, lowest layer first; the docstring of each `__init__` lists its modules and how data flows through them:

- `model` (records of measurements, limits, units), `stats`, `hookspecs` (hooks of projects);
- `system` (folders, processes, git);
- `trace` (Chrome traces as columns), `baseline` (records on disk), `workers` (tests in separate processes),
  `machine` (hardware and its state), `config` (options and marks), `scaling` (step time as a function of size);
- `analysis` (metrics and tables from a trace), `results` (verdicts and findings of a run);
- `diff` (changes between baseline and current), `measure` (passes that run a step);
- `judge` (verdicts from measurements), `whatif` (predicted effect of a change);
- `report` (pages, summaries, files), `fixture` (the fixture `perf`);
- `run` (one run of `pytest --perf`), `runs` (several of them), `ci` (the job of a CI system);
- `plugin` (pytest's hooks) and `cli` (the command `perfdl`).

PYTEST_DONT_REWRITE: a worker process imports this package before its pytest starts, which would otherwise warn
that assertions in here cannot be rewritten; under `filterwarnings = error` that would end the worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_perfdl.analysis import profile_tables
    from pytest_perfdl.analysis.overview.device import communication_overlap
    from pytest_perfdl.analysis.overview.summary import summarize
    from pytest_perfdl.machine.rates import Machine
    from pytest_perfdl.model.errors import PerfdlError
    from pytest_perfdl.model.record import Record
    from pytest_perfdl.results.run import Result, Run
    from pytest_perfdl.results.verdict import Judgement
    from pytest_perfdl.scaling.choose import choose
    from pytest_perfdl.scaling.points import read_csv
    from pytest_perfdl.trace import Category, Trace
    from pytest_perfdl.trace import read as read_trace
    from pytest_perfdl.whatif import Change, Context, Plan, Select, predict, simulate, task_graph, transform
    from pytest_perfdl.whatif.advice import advise

__version__ = "0.1.0"

__all__ = [
    "Category",
    "Change",
    "Context",
    "Judgement",
    "Machine",
    "PerfdlError",
    "Plan",
    "Record",
    "Result",
    "Run",
    "Select",
    "Trace",
    "advise",
    "choose",
    "communication_overlap",
    "predict",
    "profile_tables",
    "read_csv",
    "read_trace",
    "simulate",
    "summarize",
    "task_graph",
    "transform",
]
_MODULES = {
    "analysis": ("profile_tables",),
    "analysis.overview.device": ("communication_overlap",),
    "analysis.overview.summary": ("summarize",),
    "model.errors": ("PerfdlError",),
    "model.record": ("Record",),
    "results.run": ("Result", "Run"),
    "results.verdict": ("Judgement",),
    "scaling.choose": ("choose",),
    "scaling.points": ("read_csv",),
    "trace": ("Category", "Trace"),
    "whatif": ("Change", "Context", "Plan", "Select", "predict", "simulate", "task_graph", "transform"),
    "whatif.advice": ("advise",),
    "machine.rates": ("Machine",),
}
_PLACES = {name: (module, name) for module, names in _MODULES.items() for name in names}
_PLACES["read_trace"] = ("trace", "read")


def __getattr__(name: str) -> object:
    # Looked up when asked for: pytest imports this package at every start, and few runs need any of these.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    found: object = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
