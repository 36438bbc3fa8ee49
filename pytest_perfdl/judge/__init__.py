"""Records in, verdicts out: whether a test got slower, and by what.

Pure functions, which measure nothing and read no files. First everything but times is judged:

    found = untimed.standing(new, base, others, limits)

then its times, by rounds of paired processes where there is something to pair with,

    rule = stopping_rule.Gate(settle.held(found, limits), tests)
    while (outcome := rule.look(rounds, spent)).open:
        rounds += ...
    judgement = settle.settle(found, new, base, now, outcome.verdicts, rounds, limits, rows)

and by further repeats where there is not:

    fresh, left = ...                       # draw repeats until none is left, or
                                            # stored_repeats.settled(found, base, fresh, left, limits)
    judgement = stored_repeats.confirm(found, base, fresh, limits, remaining=left)

- Words: `results.verdict` holds them, `reasons` makes sentences of them.
- Beside times: `counted` compares exactly, `budget` holds to absolute bounds.
- Pairs: `round_data` is what was measured, `stats.evidence` what it says of one time, `stopping_rule` the rule for a
  step's times, `kernels` that for its rows, `alternatives` asks the same of two alternatives.
- Without pairs: `stored_repeats` by `stats.ranks`; `log_ratios` compares repeats, `machine_drift` says what the
  machine had to do with it.
- `blame` says what changed inside the step.

Importing this package imports nothing heavy.
"""
