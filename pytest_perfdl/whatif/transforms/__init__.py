"""The optimizations that come with the package, one family per file.

Importing this package registers them, so what finds them by name is here.

- `operators` removes, fuses or folds operators, or computes them in 16 bits; `optimizer` fuses the update of the
  parameters.
- `launching` reduces launches and waits of the host, and loads batches while the step computes.
- `sizes` changes the amount of work or the memory format, and spreads layers over devices.
- `memory` trades time for memory.
- `ranks` changes a job of several ranks; `collectives` distributes batches over devices and changes the exchange of
  gradients and its buckets.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from pytest_perfdl.whatif.transform import TRANSFORMS, Transform, quantity
from pytest_perfdl.whatif.transforms import collectives, launching, memory, operators, optimizer, ranks, sizes

__all__ = ["FAMILIES", "TRANSFORMS", "find", "parameters"]

FAMILIES = (operators, optimizer, launching, sizes, memory, ranks, collectives)


def find(name: str) -> Transform:
    """A transform by name: one that comes with the package, or a user's.

    Raises
    ------
    ValueError
        If there is none of that name; the message has the closest names, or all where none is close.
    """
    if name not in TRANSFORMS:
        known = sorted(TRANSFORMS)
        near = [each for each in known if name and name in each] or difflib.get_close_matches(name, known)
        meant = f"did you mean {' or '.join(near)}?" if near else f"known optimizations: {', '.join(known)}"
        raise ValueError(f"there is no optimization {name!r}; {meant}")
    return TRANSFORMS[name]


def parameters(name: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Parameters of a transform as the command line has them; rates and sizes with units, such as 25GB.

    Raises
    ------
    ValueError
        If it has no such parameter, one without a default is not given, or a text is not of its type.
    """
    function = find(name)
    signature = list(inspect.signature(function).parameters.values())[1:]
    names = [each.name for each in signature]
    hints = get_type_hints(function)
    for given in texts:
        if given not in names:
            known = f"known parameters: {', '.join(names)}" if names else f"{name} has no parameters"
            raise ValueError(f"{name} has no parameter {given!r}; {known}")
    for each in signature:
        if each.default is each.empty and each.name not in texts:
            raise ValueError(f"{name} needs a parameter: write {name}:{each.name}=...")
    return {given: _value(name, given, text, str(hints[given])) for given, text in texts.items()}


def _value(name: str, given: str, text: str, hint: str) -> Any:
    try:
        if "bool" in hint:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if "float" in hint:
            return quantity(text)
        return int(text) if "int" in hint else text
    except (ValueError, KeyError):
        kind = "yes or no" if "bool" in hint else "a number" if "float" in hint else "a whole number"
        raise ValueError(f"{name}:{given}={text}: expected {kind}") from None
