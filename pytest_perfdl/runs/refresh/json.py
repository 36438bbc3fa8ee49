"""Decisions as plain data: `perfdl refresh --json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from pytest_perfdl.runs.refresh.decision import Decision

SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer output."""


class _Decision(msgspec.Struct):
    id: str
    machine: str
    why: str
    metric: str | None
    effect: float | None
    """Change of the metric as a ratio."""


class _Adopted(_Decision, kw_only=True):
    change: Literal["improvement", "environment"]
    runs: int
    commit: str | None
    file: str


class _Refused(_Decision, kw_only=True):
    command: str
    """Accepts what was refused."""


class RefreshForm(msgspec.Struct):
    """What `to_json` gives."""

    adopted: list[_Adopted]
    refused: list[_Refused]
    unchanged: list[_Decision]


def to_json(
    decisions: Sequence[Decision], file: Callable[[Decision], str], command: Callable[[Decision], str]
) -> dict[str, Any]:
    """Plain data for `json`.

    Parameters
    ----------
    file
        Path of a decision's baseline, to be shown.
    command
        The command that accepts a refused change.
    """
    found: dict[str, Any] = {"schema": SCHEMA, "adopted": [], "refused": [], "unchanged": []}
    for each in decisions:
        entry: dict[str, Any] = {
            "id": each.test,
            "machine": each.machine,
            "why": each.why,
            "metric": each.metric or None,
            "effect": each.effect,
        }
        if each.record is not None:
            commit = each.record.occasions[-1].commit
            entry |= {"change": each.change, "runs": each.runs, "commit": commit, "file": file(each)}
        if each.kind == "refused":
            entry["command"] = command(each)
        found[each.kind].append(entry)
    return found
