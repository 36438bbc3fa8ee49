"""What several benchmarks need: scratch projects, results that are kept, tables, and processes that are timed.

Scripts put `benchmarks/` on their path: `from common.tables import table`.
"""
