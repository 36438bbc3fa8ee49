"""A job of a CI system: the commit that it compares with, what it tells later steps, and its comment.

`job` reads what the CI system says about the job in environment variables. `base` finds the commit to compare with, and
fetches it into a shallow clone. `comment` makes the text of a comment from a run, and creates or updates the comment on
a pull request through `api`, GitHub's REST API. Everything also runs outside of CI.
"""
