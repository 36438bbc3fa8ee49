"""Records in, verdicts out: whether a test got slower, and why.

Pure functions, which measure nothing and read no files. First everything except times is decided:

    found = untimed.standing(new, base, others, limits)

then times, in paired rounds if the baseline commit is available,

    rule = stopping_rule.Gate(settle.held(found, limits), tests)
    while (outcome := rule.look(rounds, spent)).open:
        rounds += ...
    judgement = settle.settle(found, new, base, now, outcome.verdicts, rounds, limits, rows)

and otherwise with further repeats:

    fresh, left = ...                       # measure repeats until none is left, or
                                            # stored_repeats.settled(found, base, fresh, left, limits)
    judgement = stored_repeats.confirm(found, base, fresh, limits, remaining=left)

- Text: `results.verdict` has the words, `reasons` the sentences.
- Without timing: `counted` compares exactly, `budget` checks absolute bounds.
- Paired rounds: `round_data` is the data, `stats.evidence` the statistics of one time, `stopping_rule` the rule for
  step times, `kernels` the rule for kernels and operators, `alternatives` applies it to `perf.compare`.
- Without paired rounds: `stored_repeats` with `stats.ranks`; `log_ratios` compares repeats, `machine_drift` measures
  changes of the machine.
- `blame` finds what changed inside the step.

This package imports nothing heavy.
"""
