"""What `perfdl diff` says of two sides: on the terminal, as JSON, and as a page that opens from disk."""
