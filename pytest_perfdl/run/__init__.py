"""One run of `pytest --perf`, from collected tests to written reports.

It alone knows the order of things:

1. `session` is what pytest's hooks call; `collection` finds the perf tests and reads their marks. `context` is what all
   tests of a run share: `processes` starts workers, `revisions` knows the code of either side, `progress` shows how far
   it is.
2. `perf_test` is the way of one test, a function a step: `measurement` has its first process and further repeats,
   `comparison` holds it against its baseline or another revision, `baseline_update` writes it anew.
3. `confirmation` measures rounds of the baseline's code and the working tree's (`paired_rounds`) until times are
   decided.
4. `expectations` and `expected_gain` judge what a test asserts beside limits, `scaling_curves` tests that differ in
   size.
5. `source_diff` shows what changed in the functions that are blamed, `suggestions` and `blamed_advice` what would help.

`in_process` is `--perf-isolate=none`, `name_rules` a project's own rules for matching names.
"""
