"""Records on disk: the committed baselines of a project.

`layout` says where the baseline of a test lies, `text` how it is written so that the same record always gives
the same bytes, `files` loads and saves (`Store`), `append` joins repeats of two occasions. `code` is what of the
repository a record was measured on, `recorded_commit` the commit that has it, `same` whether the tree still does.
Nothing here judges, and nothing is deleted but exemplar traces that a newly saved record replaces.
"""
