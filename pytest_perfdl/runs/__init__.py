"""Several runs of a suite: made by commands, one after the other, or finished ones that are joined and followed.

Commands that run pytest again and again: `bisect` searches for what made a test slower, `qualify` counts what a suite
detects. Both run it as `child_pytest` does, and go on from a file as `log` writes it.

Commands that read finished runs: `history` follows a test's metrics over commits, from baselines or from `run_files`
(`report.history` shows it); `refresh` updates baselines from the runs of several nights, and `merging` joins the shards
of one run.
"""
