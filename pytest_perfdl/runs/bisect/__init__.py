"""What made a test slower: the commit between a good and a bad one, or the packages between two environments.

Commits: `history` lists them, `child` measures one of them in a checkout. `posterior` is the rule: what the
measurements say about every commit, and which one to measure next. `prior` is what the changed files say before that.
`campaign` is the search.

Environments: `mixtures` makes one of two others, `mixture_child` measures it, `culprit_set` finds the packages that
matter, and `environments` is the search.

Both: `search` has the ends, and the measurements between them, `pytest_run` runs pytest, `measurements` is what is kept
of a run, `answers` is what searches end with, and `page` the answer as text.
"""
