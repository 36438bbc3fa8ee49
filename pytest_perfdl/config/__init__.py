"""What the user asks for: command line, ini file, environment variables and marks.

`options` has one table from which the parser, the ini keys and their documentation are made; `settings` resolves what
was given to `Settings`. `perf_items` tells perf tests from others. `short_names` gives `--perf` and the fixture `perf`
to those projects that have none of their own. `marker` reads `@pytest.mark.perf`. `invocation` remembers how pytest was
called, so that reports can show commands that do the same.
"""
