"""Results of steps that are not computed yet, so that the time of the step is not that of its work."""

from __future__ import annotations

import concurrent.futures
import functools
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_ITERATORS = (map, filter, zip)
_LATER = ("realize", "materialize")
"""Methods that compute what an object stands for."""
_MOST = 100
"""Elements of a container that are looked at."""
_DEPTH = 3


def pending(result: object, depth: int = _DEPTH) -> str:
    """Why a result is not computed yet, in a few words; empty if it is, as far as can be seen."""
    kind = type(result)
    if isinstance(result, concurrent.futures.Future) or f"{kind.__module__}.{kind.__qualname__}" in _FUTURES:
        return "a future"
    if isinstance(result, _ITERATORS):
        return f"a {kind.__name__} object, which does no work until it is iterated"
    if isinstance(result, _FUNCTIONS):
        return "a function that is still to be called"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(result, torch.Tensor) and (found := _tensor(torch, result)):
        return found
    if any(callable(getattr(kind, name, None)) for name in _LATER):
        return f"a {kind.__name__} that is not computed yet"
    if depth and (inner := _inner(result, torch)) is not None:
        return next(filter(None, (pending(each, depth - 1) for each in inner)), "")
    return ""


_FUTURES = frozenset(
    (
        *("asyncio.futures.Future", "_asyncio.Future", "asyncio.tasks.Task", "_asyncio.Task"),
        *("torch.jit.Future", "multiprocessing.pool.AsyncResult", "multiprocessing.pool.MapResult"),
    )
)


def _tensor(torch: Any, tensor: Any) -> str:
    """Why a tensor has no values yet; empty if it has."""
    name = type(tensor).__name__
    if tensor.device.type in ("meta", "lazy", "xla"):
        return f"a tensor of the device {tensor.device.type!r}, whose values are not computed"
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor of torch.func that is still wrapped"
    if name in ("FakeTensor", "FunctionalTensor", "UninitializedParameter", "UninitializedBuffer"):
        return f"a {name}, which has no values"
    return ""


def _inner(result: object, torch: Any) -> list[object] | None:
    """What a result holds, at most `_MOST` values; `None` for what is not looked into, such as modules."""
    if isinstance(result, Mapping):
        held: Iterable[object] = result.values()
    elif isinstance(result, (tuple, list, set, frozenset)):
        held = result
    elif torch is not None and isinstance(result, torch.nn.Module):
        return None
    elif isinstance(getattr(result, "__dict__", None), dict) or hasattr(type(result), "__slots__"):
        if isinstance(result, (type, types.ModuleType)):
            return None
        slots = getattr(type(result), "__slots__", ())
        names = [slots] if isinstance(slots, str) else list(slots)
        held = [*vars(result).values()] if hasattr(result, "__dict__") else []
        held = [*held, *(getattr(result, name, None) for name in names if not name.startswith("__"))]
    else:
        return None
    return [each for _, each in zip(range(_MOST), held, strict=False)]
