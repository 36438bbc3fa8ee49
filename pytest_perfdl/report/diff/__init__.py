"""The result of `perfdl diff`: on the terminal, as JSON, and as a self-contained page."""
