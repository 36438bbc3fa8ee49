"""One run of `pytest --perf`, from collected tests to written reports.

It alone knows the order of things:

1. `session` is what pytest's hooks call; `collection` finds the perf tests and reads their marks.
2. `context` has what all tests of a run share, and starts workers; `progress` shows how far it is.
3. `perf_test` measures one test in its first worker, and more repeats where the judgement needs them.
4. `confirmation` measures rounds of the baseline's code and the working tree's (`paired_rounds`) until times are
   decided.
5. `expectations` and `expected_gain` judge what a test asserts beside limits, `scaling_curves` tests that differ in
   size.
6. `source_diff` shows what changed in the functions that are blamed, `suggestions` and `blamed_advice` what would help.

`in_process` is `--perf-isolate=none`, `name_rules` a project's own rules for matching names.
"""
