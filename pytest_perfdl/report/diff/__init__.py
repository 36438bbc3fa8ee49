"""The result of `perfdl diff`: on the terminal, as JSON, and as a self-contained page.

`wording` has the sentences and tables that `terminal` and `html` share; `json` is the same as plain data.
"""
