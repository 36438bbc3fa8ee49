"""Results that are kept one JSON line each as soon as they are there: a script that is started again goes on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """Results so far, in the order in which they were made; without the line that was being written at a stop."""
    found = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def keep(path: Path, result: Mapping[str, Any]) -> None:
    """Append one result in one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")


def time_left(todo: Iterable[Hashable], done: Iterable[tuple[Hashable, float]], default: float = 60.0) -> str:
    """The time that the rest takes, given by kind, from the seconds that were taken by each kind: "12 min left"."""
    known: dict[Hashable, list[float]] = defaultdict(list)
    for kind, seconds in done:
        known[kind].append(seconds)
    means = {kind: sum(seconds) / len(seconds) for kind, seconds in known.items()}
    mean = sum(means.values()) / len(means) if means else default
    return f"{duration(sum(means.get(kind, mean) for kind in todo))} left"


def duration(seconds: float) -> str:
    """In minutes, or in hours where they are many.

    >>> duration(300), duration(9000)
    ('5 min', '2.5 h')
    """
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.0f} min"
