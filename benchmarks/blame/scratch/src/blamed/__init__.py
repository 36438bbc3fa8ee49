"""A package as somebody would have it: four models and their steps, measured by `tests/test_speed.py`."""
