"""Functions of a trace that are computed once per trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from pytest_perfdl.trace.model import Trace

Function = TypeVar("Function", bound=Callable[..., Any])


def remember(function: Callable[..., Any], trace: Trace, value: object, *args: object) -> None:
    """Have a function that is computed once say this of a trace, with these further arguments."""
    inner = function.__wrapped__  # type: ignore[attr-defined]
    key = (inner, *map(id, args))
    trace.derived[key] = value, args


def once(function: Function) -> Function:
    """Remember what a pure function says of a trace, as long as the trace lives.

    Further arguments are told apart by identity, so this is for functions without any, or whose arguments are
    themselves remembered. What is returned is shared and must not be changed.
    """

    @wraps(function)
    def remembering(trace: Trace, *args: object, **kwargs: object) -> object:
        if kwargs:
            return function(trace, *args, **kwargs)
        key = (function, *map(id, args))
        if key not in trace.derived:
            # The arguments are kept too, or another object could take their identity.
            trace.derived[key] = function(trace, *args), args
        return trace.derived[key][0]

    return cast("Function", remembering)
