"""Statistics, independent of tests and metrics.

`evidence` has the statistics of paired rounds: an e-process on signs, and the posterior of the change. `ranks` compares
two samples, `bounds` gives intervals of a proportion, `quantiles` those of samples and of Student's distribution.
"""
