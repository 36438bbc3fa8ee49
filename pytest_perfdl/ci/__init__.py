"""A job of a CI system: the commit that it compares with, what it tells later steps, and its comment.

`job` reads what the CI system says about the job in environment variables, finds the commit to compare with, and
fetches it into a shallow clone (`job.find`). `comment` puts a marker and links around the text of `report.markdown`
(`comment.text`), and creates or updates it (`comment.upsert`) through GitHub's REST API (`comment.Api`). Everything
also runs outside of CI.
"""
