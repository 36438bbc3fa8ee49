"""The operators of a trace that have a cost model, and what each of their distinct calls has to do at least."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.efficiency.cost_models import cost_model
from pytest_perfdl.analysis.efficiency.operator_costs import OperatorCall, OperatorCost
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import Category, Rows, Trace


@dataclass(frozen=True, slots=True)
class ModeledCall:
    """Calls of one operator with equal arguments."""

    name: str
    shapes: str
    """`Input Dims` as JSON, with one space behind each comma."""
    arguments: OperatorCall
    cost: OperatorCost


@dataclass(frozen=True, slots=True, eq=False)
class ModeledCalls:
    """See `modeled_calls`."""

    number: Rows
    """For each row of the trace the index of its call, -1 for none."""
    calls: tuple[ModeledCall, ...]
    has_model: npt.NDArray[np.bool_]
    """By index into `Trace.names`: whether there is a model, whatever is recorded."""


class _Args(msgspec.Struct, gc=False):
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b"[]"))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b"[]"))
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=msgspec.Raw(b"[]"))
    texts: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b"[]"))


@once
def modeled_calls(trace: Trace) -> ModeledCalls:
    """The calls whose cost follows from the shapes that the trace records; none without `record_shapes=True`."""
    has_model = trace.named(cost_model)
    operators = np.flatnonzero(trace.category == Category.CPU_OP)
    rows = operators[has_model[trace.name[operators]]]
    number = np.full(len(trace), -1, dtype=np.intp)
    known: dict[tuple[int, bytes, bytes, bytes, bytes], int] = {}
    calls: list[ModeledCall] = []
    for block, decoded in trace.args_by_block(rows, _Args):
        numbers = []
        for name, args in zip(trace.name[block].tolist(), decoded, strict=True):
            key = name, bytes(args.dims), bytes(args.types), bytes(args.strides), bytes(args.texts)
            if key not in known:
                call = _modeled(trace.names[name], *key[1:])
                known[key] = -1 if call is None else len(calls)
                calls += [] if call is None else [call]
            numbers.append(known[key])
        number[block] = numbers
    return ModeledCalls(number, tuple(calls), has_model)


def _modeled(name: str, dims: bytes, types: bytes, strides: bytes, texts: bytes) -> ModeledCall | None:
    lists = [msgspec.json.decode(text) for text in (dims, types, strides, texts)]
    model = cost_model(name)
    if model is None or not all(isinstance(values, list) for values in lists):
        return None
    arguments = OperatorCall.recorded(*lists)
    cost = model(arguments)
    if cost is None:
        return None
    return ModeledCall(name, b"".join(dims.split()).replace(b",", b", ").decode(errors="replace"), arguments, cost)
