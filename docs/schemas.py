"""The JSON Schemas of files and outputs, made from the types of the code; `docs/reference.py` writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from pytest_perfdl.model import record_json
from pytest_perfdl.report import history
from pytest_perfdl.report.diff import json as diff
from pytest_perfdl.report.diff.json import DiffForm
from pytest_perfdl.report.history import HistoryForm
from pytest_perfdl.report.trace import json as trace
from pytest_perfdl.report.trace.json import RanksForm, TraceForm
from pytest_perfdl.results import run_file
from pytest_perfdl.runs import refresh
from pytest_perfdl.runs.bisect.answers import CommitAnswerForm, EnvironmentAnswerForm

DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class Published:
    """One schema."""

    form: Any
    title: str
    version: int
    """Of the schema's name; it is raised when a reader of the version before would misread the output."""
    has_field: bool = True
    """Whether the output has a field "schema" with the version."""
    nullable: bool = True
    """Whether numbers that are not finite are null."""


PUBLISHED = {
    "baseline": Published(record_json.RecordForm, "A baseline of a test", record_json.SCHEMA, nullable=False),
    "run": Published(run_file.RunForm, "The run file, run.json", run_file.SCHEMA),
    "trace": Published(TraceForm, "perfdl trace --json, of one trace", trace.SCHEMA),
    "trace-ranks": Published(RanksForm, "perfdl trace --json, of several traces", trace.SCHEMA),
    "diff": Published(DiffForm, "perfdl diff --json", diff.SCHEMA),
    "history": Published(HistoryForm, "perfdl history --json", history.SCHEMA),
    "refresh": Published(refresh.RefreshForm, "perfdl refresh --json", refresh.SCHEMA),
    "bisect": Published(CommitAnswerForm, "perfdl bisect --json", 1, has_field=False),
    "bisect-environments": Published(EnvironmentAnswerForm, "perfdl bisect --environments --json", 1, has_field=False),
}
"""By the name of the file."""


def made(name: str) -> str:
    """The text of a schema."""
    each = PUBLISHED[name]
    schema = schema_of(each.form, each.title, each.version if each.has_field else None, nullable=each.nullable)
    head = {"$schema": DIALECT, "$id": f"urn:pytest-perfdl:schema:{name}:{each.version}"}
    return json.dumps({**head, "title": schema.pop("title"), **schema}, indent=1) + "\n"


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
