"""Histories: on the terminal, as JSON and CSV, and as a page.

- `terminal`: a sparkline and the changes of every test; `wording` has what it shares with the page.
- `json` and `csv`: all points, for other programs.
- `html`: the page; `chart` draws its pictures.
"""
