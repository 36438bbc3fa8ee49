"""Records in, verdicts out: whether a test got slower, and why.

Pure functions, which measure nothing and read no files. First everything except times is decided:

    found = untimed.standing(new, base, others, limits)

then times, in paired rounds if the baseline commit is available,

    rule = stopping_rule.Gate(settle.select_held(found, limits), tests)
    while (outcome := rule.look(rounds, spent)).open:
        rounds += ...
    judgement = settle.settle(found, new, base, now, outcome.verdicts, rounds, limits, rows)

and otherwise with further repeats:

    fresh, left = ...                       # measure repeats until none is left, or
                                            # stored_repeats.is_settled(found, base, fresh, left, limits)
    judgement = stored_repeats.confirm(found, base, fresh, limits, remaining=left)

- Without timing: `untimed` decides about missing and outdated baselines, `reasons.judge` compares counted metrics
  exactly, `budget` checks absolute bounds and applies waivers.
- Paired rounds: `round_data` is the data (made by `run.paired_rounds`), `stats.evidence` the statistics of one time,
  `stopping_rule` the rule for step times, `kernels` the rule for kernels and operators; `kernels.judge_comparison`
  applies it to `perf.compare`. `families` is the rule for many cases that a process measures together, `tables` the
  verdict by it. `settle` makes the verdict of the whole test.
- Without paired rounds: `stored_repeats`, with the rank test of `stats.quantiles`; `log_ratios` compares repeats,
  `stored_repeats.find_drift` measures changes of the machine.
- Causes: `blame` finds what changed inside the step, `ranks` the rank that it comes from, `work` whether the step does
  more work, the same work in a slower type or with more memory traffic, or less work (`work.find_vanished`).
- Text: the module that makes a verdict also writes its reason: `stopping_rule`, `stored_repeats`, `untimed`, `budget`
  (waivers too), `kernels`. `reasons` has the phrases that they share, and the reason of a test.

This package imports nothing heavy.
"""
