"""Configuration: command line, ini file, environment variables and marks.

`options` has one table from which the parser, the ini keys and their documentation are generated; `settings` validates
their values. `perf_items` selects perf tests. `short_names` registers `--perf` and the fixture `perf` in projects where
these names are free. `marker` reads `@pytest.mark.perf`. `invocation` records how pytest was called, so that reports
can show commands that repeat the run.
"""
