"""Functions by name: how edits and optimizations are added, those that come with the package and those of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def registering(known: dict[str, Any], name: str, what: str) -> Callable[[Function], Function]:
    """A decorator that adds a function to those known under a name; the same function may be added again.

    Raises
    ------
    ValueError
        When the decorator meets another function of that name; `what` they are is said.
    """

    def register(function: Function) -> Function:
        there = known.get(name)
        if there is not None and (there.__module__, there.__qualname__) != (function.__module__, function.__qualname__):
            raise ValueError(f"{what} named {name!r} already exists: choose another name")
        known[name] = function
        return function

    return register
