"""Updates of baselines from the run files of several nights, without a slowdown in any of them.

`measured` is what the run files hold of one test, oldest first. `decision` is the rule: pure functions of these and of
the stored baseline. `improvement` and `environment` are its two kinds of updates, and `kept` is what a baseline that
they write keeps of the recordings before it. `json` is the form of decisions for other programs.
"""
