"""Which commit made a test slower: measured commits between a good and a bad one, and a posterior over all of them.

`history` lists the commits, `child` measures one of them in a pytest of its own, `measurements` is what is kept of
that, `log` the file that it is kept in. `posterior` is the rule: what the measurements say about every commit, and
which one to measure next. `prior` is what the changed files say before that. `campaign` is the loop, `answer` what it
ends with.
"""
