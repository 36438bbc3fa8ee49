"""What made a test slower: the commit between a good and a bad one, or the packages between two environments.

Commits: `history` lists them, `child` measures one of them in a checkout. `posterior` is the rule: what the
measurements say about every commit, and which one to measure next. `prior` is what the changed files say before that.
`campaign` is the loop, and `answer` what it ends with.

Environments: `mixtures` makes one of two others, `mixture_child` measures it, `culprit_set` finds the packages that
matter, `environments` is the search, and `environment_answer` what it ends with.

Both: `ends` says whether there is anything to search for, `pytest_run` runs pytest, `measurements` is what is kept of
a run, and `page` is the answer as text.
"""
