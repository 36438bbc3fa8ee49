"""What `perfdl scaling` says: `terminal` in plain words, `json` as plain data, `plot` as a picture of a curve."""
