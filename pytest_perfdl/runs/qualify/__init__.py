"""What a suite finds on this machine: unchanged code and known slowdowns, measured again and again.

`child` runs the suite once in a pytest of its own, `outcomes` is what is kept of that, `log` the file that it is kept
in, `campaign` which run comes next, `summary` what all of them say, by the arithmetic of `stats.bounds`.
"""
