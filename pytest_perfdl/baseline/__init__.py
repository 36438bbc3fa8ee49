"""Records on disk: the committed baselines of a project.

`layout` defines the path of a test's baseline, `text` its format (the same record always gives the same bytes), `files`
loads and saves (`Store`), `outline` reads the little that lists need, `append` joins two recordings. `code` is the code
of the repository with which a record was measured, `recorded_commit` finds the commit that has it, `same` checks
whether the working tree still has it. Nothing is deleted except traces that a new record replaces.
"""
