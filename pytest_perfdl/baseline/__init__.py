"""Records on disk: the committed baselines of a project.

`files` defines the path of a test's baseline (`files.baseline_path`), loads and saves under a lock (`files.Store`), and
reads the little that lists need (`files.outline`). `text` is the format (the same record always gives the same bytes);
`text.append` joins two recordings. `code` is the code of the repository with which a record was measured,
`recorded_commit` finds the commit that has it and checks whether the working tree still has it
(`recorded_commit.difference`). Nothing is deleted except traces that a new record replaces.
"""
