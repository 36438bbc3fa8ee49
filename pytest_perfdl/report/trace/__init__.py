"""What is said about one trace or several ranks' traces: on the terminal, as JSON, as a page.

`tables` has what terminal and page say of a trace, `ranks` what they say of the ranks of a job. `terminal`, `json` and
`html` are the reporters; `chrome` joins the traces of a job's ranks to one Chrome trace. Each reporter is a function
over `analysis.TraceSummary`; none computes a figure of its own.
"""
