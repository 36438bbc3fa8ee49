"""Records in, verdicts out: the room where it is decided whether a test got slower, and by what.

Pure functions over `Record`s, which measure nothing and read no files:

    judgement = screen.screen(new, base, others, limits)
    if judgement.suspects:
        fresh, left = ...                       # draw repeats until none is left, or
                                                # confirm.settled(judgement, base, fresh, left, limits)
        judgement = confirm.confirm(judgement, base, fresh, limits, remaining=left)

`verdict` holds the words, `timed` and `ranks` the statistics, `counted` the exact comparison, `budget` the
absolute bounds, `blame` what changed, `wording` the sentences. Importing this package imports nothing heavy.
"""
