"""The JSON Schemas of files and outputs, made from the types of the code; `docs/reference.py` writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pytest_perfdl.model import record_json
from pytest_perfdl.model.json import schema_of
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
