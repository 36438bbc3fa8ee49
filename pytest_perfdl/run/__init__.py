"""One run of `pytest --perf`, from collected tests to written reports.

This package alone defines the order of work:

1. `session` implements pytest's hooks; `collection` selects the perf tests and reads their markers, `selection` the
shard and the waivers. `context` is what all tests of a run share: `processes` starts workers, `revisions` provides the
code of both sides, `machine_rates` the peak rates, `progress` prints the progress line. 2. `perf_test` is the flow of
one test, one function per step: `measurement` measures it, `comparison` compares it with its baseline or with another
revision, `baseline_update` records it. `joined_ranks` joins the answers of the ranks of a job, `assemble` those of
several workers to a `Record`, with the notes on them. 3. `confirmation` measures paired rounds of the baseline's and
the current code (`paired_rounds`) until times are decided. `memory_accounts` breaks down a peak that differs,
`vanished_work` looks at a test that got faster. 4. `advice.judged` decides `perf.assert_whatif`, `scaling_curves`
compares tests of different sizes, and `context.joined` joins both with the result. 5. `definitions` shows what differs
in the source of both sides, `advice` suggests optimizations.

`in_process` implements `--perf-isolate=none`; `context.name_rules` reads a project's rules for kernel and operator
names.
"""
