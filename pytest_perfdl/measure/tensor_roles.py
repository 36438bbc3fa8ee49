"""The role of every tensor that Python can reach: parameter, gradient, optimizer state or other."""

from __future__ import annotations

import gc
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pytest_perfdl.model.memory import Category, Held


def held_storages() -> dict[int, Held]:
    """The storages of all tensors that Python can reach and of the gradients of leaves, by address; each one once.

    A parameter that several modules share has the name of the first. Tensors that only C++ holds, such as those that a
    graph saved for its backward pass, are not among them.
    """
    gc.unfreeze()
    found: dict[int, Held] = {}
    for thing in _tensors_among(gc.get_objects()):
        for tensor in (thing, thing.grad if thing.is_leaf else None):
            if tensor is not None:
                for address, held in _storages(tensor):
                    _keep(found, address, held)
    return found


def with_roles(held: Mapping[int, Held]) -> dict[int, Held]:
    """The storages with what they are for, from the modules and optimizers that there are."""
    import torch

    found = dict(held)
    names: dict[int, str] = {}
    kept = gc.get_objects()
    for name, tensor in _named(kept):
        names.setdefault(id(tensor), name)
        _assign(found, tensor, "parameters", name)
    for leaf in (tensor for tensor in _tensors_among(kept) if tensor.is_leaf):
        if type(leaf) is torch.nn.Parameter:
            _assign(found, leaf, "parameters", names.get(id(leaf), ""))
        if leaf.grad is not None:
            _assign(found, leaf.grad, "gradients", names.get(id(leaf), ""))
    for states in _states(kept):
        for parameter, state in states.items():
            for tensor in _tensors(state):
                _assign(found, tensor, "optimizer state", names.get(id(parameter), ""))
    return found


def parameter_names() -> list[tuple[Any, str]]:
    """The leaves that gradients are accumulated for, with their names; a name is empty where no module has it."""
    kept = gc.get_objects()
    names: dict[int, str] = {}
    for name, tensor in _named(kept):
        names.setdefault(id(tensor), name)
    leaves = (tensor for tensor in _tensors_among(kept) if tensor.is_leaf and tensor.requires_grad)
    return [(leaf, names.get(id(leaf), "")) for leaf in leaves]


def _tensors_among(kept: list[Any]) -> Iterator[Any]:
    """Plain tensors and parameters; by their types, since `isinstance` runs code of objects that stand for others."""
    import torch

    return (thing for thing in kept if type(thing) in (torch.Tensor, torch.nn.Parameter))


def _named(kept: list[Any]) -> Iterator[tuple[str, Any]]:
    """The parameters and buffers of all modules, one that is shared under each of its names."""
    import torch

    for root, label in _roots([thing for thing in kept if issubclass(type(thing), torch.nn.Module)]):
        for members in (root.named_parameters(remove_duplicate=False), root.named_buffers(remove_duplicate=False)):
            for name, tensor in members:
                yield f"{label}.{name}", tensor


def _states(kept: list[object]) -> Iterator[Mapping[Any, object]]:
    """What is kept for parameters: the state of torch's optimizers, and dictionaries by parameter, as others have."""
    import torch

    for thing in kept:
        if issubclass(type(thing), torch.optim.Optimizer):
            yield thing.state  # type: ignore[attr-defined]
        elif type(thing) in (dict, defaultdict) and thing and type(next(iter(thing))) is torch.nn.Parameter:  # type: ignore[call-overload]
            yield thing  # type: ignore[misc]


def _roots(modules: list[Any]) -> Iterator[tuple[Any, str]]:
    """Modules that are in no other, the largest first, with the name of their class; a second one has a number."""
    inner = {id(child) for module in modules for child in module.children()}
    roots = [module for module in modules if id(module) not in inner]
    seen: Counter[str] = Counter()
    # A model comes before what holds one of its tensors as well, such as a loss with a class's weights.
    for module in sorted(roots, key=lambda root: -sum(1 for _ in root.modules())):
        kind = type(module).__name__
        yield module, f"{kind}_{seen[kind]}" if seen[kind] else kind
        seen[kind] += 1


def _storages(tensor: Any) -> Iterator[tuple[int, Held]]:
    import torch

    if tensor.device.type == "meta":
        return
    if tensor.layout is torch.sparse_coo:
        yield from _storages(tensor._values())
        yield from _storages(tensor._indices())
    elif tensor.layout is torch.strided:
        storage = tensor.untyped_storage()
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield storage.data_ptr(), Held(storage.nbytes(), str(tensor.device), dtype, tuple(tensor.shape))


def _keep(found: dict[int, Held], address: int, held: Held) -> None:
    """Of the tensors that share a storage, keep the one with most elements: views have fewer."""
    known = found.get(address)
    if known is None or math.prod(held.shape) > math.prod(known.shape):
        found[address] = held


def _assign(found: dict[int, Held], tensor: Any, category: Category, name: str) -> None:
    for address, held in _storages(tensor):
        known = found.get(address, held)
        if known.category is None:
            found[address] = replace(known, category=category, name=name)
        elif category == "parameters" and name and name not in (known.name, *known.shared):
            found[address] = replace(known, shared=(*known.shared, name))


def _tensors(value: object) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
