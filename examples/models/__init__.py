"""Small, complete models that the perf tests measure; each file stands alone and may be copied.

A line that asks `planted("...")` is a seam at which a regression can be switched on (see plants.py). In a
copy, drop these lines: what remains is the model as it should be.
"""
