"""Configuration: command line, ini file, environment variables and marks.

`options` has one table from which the parser, the ini keys and their documentation are generated; `settings.Settings`
has a field for each value, and validates it. `short_names` registers `--perf` and the fixture `perf` in projects where
these names are free. `marker` says which items are perf tests, and reads `@pytest.mark.perf`. `waivers` reads the
waiver file. `invocation` records how pytest was called, so that reports can show commands that repeat the run.
"""
