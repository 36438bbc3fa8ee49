"""Statistics, without any knowledge of tests or metrics.

`evidence` is what rounds say of one time: the e-process on signs and the posterior of the change. `ranks` compares
two samples, `bounds` gives intervals of a share, `quantiles` those of samples and of Student's distribution.
"""
