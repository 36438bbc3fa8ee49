"""Tables in Markdown, and where they stand in a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path


def table(head: Iterable[object], rows: Iterable[Iterable[object]], *, numbers: bool = False) -> Iterator[str]:
    """The lines, each as soon as its row is there; with `numbers`, all columns but the first are aligned to the right.

    >>> list(table(("rule", "found"), [("ours", 3)], numbers=True))
    ['| rule | found |', '|---|---:|', '| ours | 3 |']
    """
    names = list(head)
    yield _line(names)
    yield "|---|" + ("---:|" if numbers else "---|") * (len(names) - 1)
    yield from map(_line, rows)


def table_text(head: Iterable[object], rows: Iterable[Iterable[object]], *, numbers: bool = False) -> str:
    """All lines of a table."""
    return "\n".join(table(head, rows, numbers=numbers))


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def write_between(path: Path, start: str, end: str, text: str) -> None:
    """Replace what stands between two markers of a page.

    Raises
    ------
    ValueError
        When the page does not hold each marker once, in order.
    """
    old = path.read_text()
    if old.count(start) != 1 or old.count(end) != 1 or old.index(start) > old.index(end):
        raise ValueError(f"{path}: expected one {start} and after it one {end}")
    head, _, rest = old.partition(start)
    path.write_text(f"{head}{start}\n{text}\n{end}{rest.partition(end)[2]}")
