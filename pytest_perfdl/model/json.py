"""JSON: values as plain data, and the schemas of their forms.

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


def schema_of(form: Any, title: str, version: int | None, *, nullable: bool = False) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a form; unknown fields are allowed, so that later versions may add some.

    Parameters
    ----------
    title
        One sentence.
    version
        Value of the field "schema"; `None` for an output without it.
    nullable
        Whether a number that is not finite is written as null.

    Raises
    ------
    ValueError
        Two different forms have the same name without what marks a class as private.
    """
    made = _clean(msgspec.json.schema(form), nullable=nullable)
    defined = made.pop("$defs", {})
    top = defined.pop(made.pop("$ref").rpartition("/")[2]) if "$ref" in made else made
    if version is not None:
        top["properties"] = {"schema": {"const": version}, **top["properties"]}
        top["required"] = ["schema", *top.get("required", ())]
    top["title"] = title
    return {**top, **({"$defs": dict(sorted(defined.items()))} if defined else {})}


def _clean(value: Any, *, nullable: bool) -> Any:
    """Names without what marks a class as private, patterns as JSON Schema has them, and numbers that may be null."""
    if isinstance(value, list):
        return [_clean(each, nullable=nullable) for each in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, each in value.items():
        if key == "$ref":
            found[key] = f"#/$defs/{_public(each.rpartition('/')[2])}"
        elif key == "$defs":
            found[key] = {}
            for name, form in each.items():
                clean = _clean(form, nullable=nullable)
                if found[key].setdefault(_public(name), clean) != clean:
                    raise ValueError(f"another form than {name} has the public name {_public(name)}")
        elif key == "pattern":
            found[key] = each.replace("\\Z", "$")
        elif key == "title":
            found[key] = _public(each)
        elif key == "type" and each == "number" and nullable:
            found[key] = ["number", "null"]
        elif key not in ("description", "default"):
            found[key] = _clean(each, nullable=nullable)
    return found


def _public(name: str) -> str:
    return name.lstrip("_").removesuffix("Form") or "Record"
