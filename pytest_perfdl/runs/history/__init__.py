"""A test's metrics over commits: from committed baselines or run files to points and change points.

`committed` reads the baselines of all commits, and `run_files` run files from files, folders and URLs; both give
`Measurement`s (`measurements`). `assemble` makes a series of each test, metric and machine, and finds its change points
(`stats.change_points`).
"""
