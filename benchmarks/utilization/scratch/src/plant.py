"""What is planted: `plants.py` writes another value into the working tree."""

PLANTED = False
