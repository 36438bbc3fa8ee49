"""Which change is made to the code: none, but for the one that the environment names."""

from __future__ import annotations

import os

ACTIVE = os.environ.get("BLAME_PLANT", "")


def planted(name: str) -> bool:
    """Whether this change is made."""
    return name == ACTIVE
