"""Records on disk: the committed baselines of a project.

`layout` says where the baseline of a test lies, `text` how it is written so that the same record always gives
the same bytes, `files` loads and saves (`Store`), `append` joins repeats of two occasions. Nothing here
judges, and nothing is deleted but exemplar traces that a newly saved record replaces.
"""
