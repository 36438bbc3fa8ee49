"""Numbers objects in the order in which they first appear."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")


class Numbering(dict[Key, int]):
    """The number of each thing: asked for one that is new, it gives it the next.

    >>> numbering = Numbering[str]()
    >>> list(map(numbering.__getitem__, "abac"))
    [0, 1, 0, 2]
    """

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        return number
