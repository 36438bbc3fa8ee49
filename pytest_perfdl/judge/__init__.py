"""Records in, verdicts out: the room where it is decided whether a test got slower, and by what.

Pure functions, which measure nothing and read no files. First every test is screened:

    judgement = screen.screen(new, base, others, limits)
    rows = kernels.suspected(new, base, limits)

What that suspects is confirmed by rounds of paired processes, where there is something to pair with,

    test = paired.PairedTest(settle.suspects(judgement, limits, everything=False), alpha)
    while (outcome := test.look(rounds)).next_look is not None:
        rounds += ...
    judgement = settle.settle(judgement, new, base, outcome, rounds, limits)

and by further repeats where there is not:

    fresh, left = ...                       # draw repeats until none is left, or
                                            # confirm.settled(judgement, base, fresh, left, limits)
    judgement = confirm.confirm(judgement, base, fresh, limits, remaining=left)

- Words: `verdict` holds them, `wording` makes sentences of them.
- The screen: `counted` compares exactly, `timed` by t, `budget` holds to absolute bounds, `drift` says what the
  machine had to do with it.
- Pairs: `rounds` is the evidence, `signedrank` and `sequential` the test of a step's times, `signflip` that of all
  its kernels at once (`kernels`), `spending` shares a suite's chance of a false alarm, `expectation` asks the same
  of two alternatives. Without pairs: `ranks`.
- `blame` says what changed inside the step.

Importing this package imports nothing heavy.
"""
