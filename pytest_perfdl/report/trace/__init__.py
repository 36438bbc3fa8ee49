"""What is said about one trace or several ranks' traces: on the terminal, as JSON, as a page.

`tables` declares the columns of all tables, and has the sentences that terminal and page share; `ranks` has those of
the ranks of a job. `terminal`, `json` and `html` are the reporters; `chrome` joins the traces of a job's ranks to one
Chrome trace. Each reporter is a function over `analysis.TraceSummary`; none computes a figure of its own.
"""
