"""What is said about one trace or several ranks' traces: on the terminal, as JSON, as a page.

Each reporter is a function over `analysis.TraceSummary`; none computes a figure of its own.
"""
