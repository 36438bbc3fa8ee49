"""Snapshot testing for speed: performance regression tests for deep learning, in pytest.

The rooms, ground floor first: `record` and `trace/` (what is known), `analysis/` (figures from a trace),
`isolate/`, `measure/`, `baseline/` and `judge/` (how it is measured, kept and judged), `report/`,
`session` (the story), `plugin` and `cli/` (the doors).

PYTEST_DONT_REWRITE: a worker process imports this package before its pytest starts, which would otherwise warn
that assertions in here cannot be rewritten; under `filterwarnings = error` that would end the worker.
"""

__version__ = "0.1.0"
