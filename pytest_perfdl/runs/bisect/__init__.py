"""What made a test slower: the commit between a good and a bad one, or the packages between two environments.

Commits: `history` lists them, `child` measures one of them in a checkout. `posterior` is the rule: what the changed
files say about every commit (documentation gets little weight) (`posterior.prior_of`), what the measurements say, and
which commit to measure next (`posterior.Posterior`). `campaign` is the search.

Environments: `mixtures` makes one of two others, `child.MixtureChild` measures it, `posterior.culprit_set` finds the
packages that matter, and `environments` is the search.

Both: `search` has the ends, and the measurements between them, `child.measured` runs pytest, `measurements` is what is
kept of a run, `answers` is what searches end with, and `page` the answer as text.
"""
