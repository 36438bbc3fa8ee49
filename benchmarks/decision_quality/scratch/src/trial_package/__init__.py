"""A package as somebody would have it: two models and a data loader, measured by `tests/test_speed.py`."""
