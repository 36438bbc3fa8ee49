"""JSON: values as plain data, and their forms.

Dataclasses that are written field by field have derived forms; the other forms are classes next to their writers, which
fill them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec

F = TypeVar("F", bound=msgspec.Struct)


def plain(value: Any) -> Any:
    """A value as plain data for `json`: finite numbers, text, lists and dicts; other numbers are `None`."""
    return _finite(msgspec.to_builtins(value, enc_hook=_subclassed))


def _subclassed(value: Any) -> Any:
    """A number or an array of numpy's as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value)} has no JSON form")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def filled(form: type[F], *values: Any, **more: Any) -> F:
    """A form with `more`, and the other fields from the attributes of that name of the first value that has one."""
    for name in form.__struct_fields__:
        if name not in more:
            more[name] = getattr(next((each for each in values[:-1] if hasattr(each, name)), values[-1]), name)
    return form(**more)


def derived(
    name: str,
    kind: type,
    *,
    first: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    more: Mapping[str, Any] | None = None,
) -> Any:
    """The form of a dataclass that is written field by field.

    Parameters
    ----------
    name
        Of the form, in its schema.
    first
        Fields that come before the others.
    without
        Fields that are left out.
    more
        Types of further fields, by name; they replace fields of the dataclass.
    """
    hints = get_type_hints(kind, include_extras=True)
    fields = {each.name: hints[each.name] for each in dataclasses.fields(kind) if each.name not in without}
    return msgspec.defstruct(name, list({**dict.fromkeys(first), **fields, **(more or {})}.items()))
