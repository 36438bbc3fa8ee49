"""A project's rules for kernel and operator names, from its `conftest.py` (`hookspecs.pytest_perfdl_name_rules`)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pytest_perfdl.diff.matching.names import Rules, rules_of

_RULES = pytest.StashKey[Rules]()
_HOOK = "pytest_perfdl_name_rules"


def name_rules(config: pytest.Config) -> Rules:
    """The rules of all `conftest.py` files and plugins, compiled; asked for once a session.

    Raises
    ------
    pytest.UsageError
        When a rule cannot be used: without it every comparison would say something else than the project meant.
    """
    if _RULES not in config.stash:
        try:
            config.stash[_RULES] = rules_of(
                pair for pairs in config.hook.pytest_perfdl_name_rules() for pair in _of(pairs)
            )
        except ValueError as error:
            raise pytest.UsageError(f"{_HOOK}: {error}") from None
    return config.stash[_RULES]


def _of(pairs: object) -> Iterable[object]:
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise ValueError(f"{pairs!r} is not a list of (pattern, replacement) pairs")
    return pairs
