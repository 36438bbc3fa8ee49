"""Statistics, independent of tests and metrics.

`quantiles` has quantiles of samples and of Student's distribution, intervals of a proportion, and the rank test of two
samples. `evidence` has the statistics of paired rounds: an e-process on signs, and the posterior of the change.
`change_points` finds where the level of a series changes, under autocorrelation, and has the thresholds. `summaries`
has the statistics of a sample that pytest-benchmark reports.
"""
