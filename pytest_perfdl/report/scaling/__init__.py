"""Times over sizes, as `perfdl scaling` says them and as the page of a run shows them.

- `terminal`: models and predictions in plain words; `json`: as plain data.
- `curve`: what the run file holds of a test's curve; `html`: what the page shows of it.
- `plot` draws both, `wording` says figures.
"""
