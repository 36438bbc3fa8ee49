"""One run of `pytest --perf`, from collected tests to written reports.

This package alone defines the order of work:

1. `session` implements pytest's hooks; `collection` selects the perf tests and reads their markers. `context` is what
   all tests of a run share: `processes` starts workers, `revisions` provides the code of both sides, `progress` prints
   the progress line.
2. `perf_test` is the flow of one test, one function per step: `measurement` measures it, `comparison` compares it with
   its baseline or with another revision, `baseline_update` records it. `joined_ranks` joins the answers of the ranks of
   a job, `assemble` those of several workers to a `Record`, with `surroundings` and `step_utilization`.
3. `confirmation` measures paired rounds of the baseline's and the current code (`paired_rounds`) until times are
   decided.
4. `expectations` and `expected_gain` decide a test's assertions, `scaling_curves` compares tests of different sizes.
5. `source_diff` shows source changes at the causes, `suggestions` and `blamed_advice` suggest optimizations.

`in_process` implements `--perf-isolate=none`; `name_rules` reads a project's rules for kernel and operator names.
"""
