"""Prints which regressions are planted (see plants.py), and rejects names that do not exist."""

import sys
from pathlib import Path

import pytest

# `--import-mode=importlib` does not make this folder importable.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure():
    try:
        import plants  # noqa: F401
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header():
    from plants import active

    return f"planted: {', '.join(sorted(active()))}" if active() else []
