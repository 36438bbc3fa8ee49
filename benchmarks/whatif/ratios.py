"""How much faster operators are in another form: replayed from a trace, in both forms in turns.

    python benchmarks/whatif/ratios.py TRACE OUT.json [--forms bfloat16 channels_last]

Writes what `perfdl whatif --machine OUT.json` reads: for the operators that make up 95 % of the time of those with a
cost model, the quartiles of time in that form over time as recorded; the memory's bandwidth, by a copy of 64 MiB; and
how much slower a process computes beside another, and what a batch from a DataLoader's worker costs.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from pytest_perfdl.predict.whatif import task_graph
from pytest_perfdl.predict.whatif.facts import computing, operator_costs
from pytest_perfdl.predict.whatif.machine import Machine
from pytest_perfdl.trace import Trace, read

COVERED = 0.95
REPEATS, LEAST_NS = 15, 200_000

_TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "long int": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
}


class _Args(msgspec.Struct):
    dims: list[Any] = msgspec.field(name="Input Dims", default_factory=list)
    types: list[str] = msgspec.field(name="Input type", default_factory=list)
    strides: list[Any] = msgspec.field(name="Input Strides", default_factory=list)
    texts: list[str] = msgspec.field(name="Concrete Inputs", default_factory=list)


def arguments(args: _Args) -> list[Any]:
    """Arguments like those of a recorded call; raises ValueError where they cannot be made."""
    found: list[Any] = []
    for place, kind in enumerate(args.types):
        text = args.texts[place] if place < len(args.texts) else ""
        if kind in _TYPES:
            shape, dtype = args.dims[place], _TYPES[kind]
            strides = args.strides[place] if place < len(args.strides) else []
            size = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if shape else 1
            flat = torch.randn(max(size, 1)) if dtype.is_floating_point else torch.zeros(max(size, 1))
            found.append(flat.to(dtype).as_strided(shape, strides))
        elif kind in ("", "None") and not text:
            found.append(None)
        elif kind in ("Scalar", "ScalarList", "") or "List" not in kind:
            found.append(ast.literal_eval(text) if text else None)
        else:
            raise ValueError(kind)
    return found


def in_form(form: str, value: Any) -> Any:
    """A tensor in another form."""
    if not isinstance(value, torch.Tensor):
        return value
    if form == "channels_last":
        return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value
    return value.to(getattr(torch, form)) if value.is_floating_point() else value


def called(name: str, args: Sequence[Any]) -> tuple[Callable[..., Any] | None, list[Any], set[int]]:
    """An operator that takes its arguments by position, these arguments, and which of them stay as they are.

    Statistics of attention stay in float32 whatever the others are.
    """
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None or not hasattr(packet, "default"):
        return packet, list(args), set()
    schema = packet.default._schema.arguments
    named = [each.name for each in schema if each.kwarg_only]
    first = len(schema) - len(named)

    def function(*given: Any) -> Any:
        return packet(*given[:first], **dict(zip(named, given[first:], strict=False)))

    same = {place for place, each in enumerate(schema) if each.name == "logsumexp"}
    return (function if named and len(args) > first else packet), list(args), same


def timed(function: Callable[..., Any], args: Sequence[Any], loops: int) -> int:
    """Nanoseconds of some calls."""
    begun = time.perf_counter_ns()
    for _ in range(loops):
        function(*args)
    return time.perf_counter_ns() - begun


def ratio(name: str, args: list[Any], form: str) -> tuple[float, float, float] | None:
    """Quartiles of the time in a form over the time as it is; `None` for what cannot be replayed."""
    function, args, same = called(name, args)
    if function is None:
        return None
    try:
        other = [value if place in same else in_form(form, value) for place, value in enumerate(args)]
        once = timed(function, args, 2) // 2
        timed(function, other, 2)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None
    loops = max(1, LEAST_NS // max(once, 1))
    low, middle, high = np.quantile(_ratios(function, other, args, loops), (0.25, 0.5, 0.75)).tolist()
    images = [place for place, value in enumerate(args) if isinstance(value, torch.Tensor) and value.dim() == 4]
    if form == "channels_last" and len(images) > 1:
        # A gradient may come in the old format from a loss that knows no other: some operators then take much longer.
        mixed = [args[images[0]] if place == images[0] else value for place, value in enumerate(other)]
        high = max(high, float(np.quantile(_ratios(function, mixed, args, loops), 0.75)))
    return low, middle, high


def _ratios(function: Any, other: list[Any], args: list[Any], loops: int) -> list[float]:
    return [timed(function, other, loops) / timed(function, args, loops) for _ in range(REPEATS)]


def measured(trace: Trace, forms: Sequence[str]) -> Machine:
    """Ratios of the operators that matter, and the memory's bandwidth."""
    costs, graph = operator_costs(trace), task_graph(trace)
    call = np.where(computing(graph), costs.of_tasks(graph), -1)
    some = np.flatnonzero(call >= 0)
    spent = np.bincount(costs.number[call[some]], graph.tasks.duration[some], minlength=len(costs.costs))
    order = np.argsort(-spent)
    kept = order[: int(np.searchsorted(np.cumsum(spent[order]), COVERED * spent.sum())) + 1]
    ratios: dict[str, dict[str, tuple[float, float, float]]] = {form: {} for form in forms}
    with torch.no_grad():
        for number in kept.tolist():
            row = int(np.flatnonzero(costs.number == number)[0])
            [args] = trace.decode_args(np.array([row]), _Args)
            try:
                given = arguments(args)
            except (ValueError, SyntaxError, RuntimeError, TypeError):
                continue
            for form in forms:
                found = ratio(costs.name(number), given, form)
                if found is not None:
                    ratios[form][costs.keys[number]] = found
        block = torch.empty(2**24)
        target = torch.empty_like(block)
        target.copy_(block)
        copied = min(timed(target.copy_, (block,), 1) for _ in range(9))
    return Machine(
        memory_bytes_per_s=2 * 4 * 2**24 / copied * 1e9,
        contention=contention(),
        hand_over_ns=hand_over(),
        ratios=ratios,
        source={
            "ratios": "replayed",
            "memory_bytes_per_s": "copied",
            "contention": "two processes",
            "hand_over_ns": "a loader",
        },
    )


def contention() -> float:
    """How much longer products of matrices take while another process computes them too: two cores may be one."""
    matrix = torch.randn(256, 256)

    def spent() -> float:
        return float(np.quantile([timed(torch.mm, (matrix, matrix), 40) for _ in range(REPEATS)], 0.25))

    def neighbour(stop: Any) -> None:
        while not stop.is_set():
            torch.mm(matrix, matrix)

    alone = spent()
    forked = multiprocessing.get_context("fork")
    stop = forked.Event()
    process = forked.Process(target=neighbour, args=(stop,), daemon=True)
    process.start()
    time.sleep(0.2)
    beside = spent()
    stop.set()
    process.join()
    return max(beside / alone, 1.0)


class Ready(Dataset[torch.Tensor]):
    """Samples that take no time to make."""

    def __len__(self) -> int:
        return 2**20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(256)


def hand_over() -> float:
    """Nanoseconds of taking a batch that is ready from a DataLoader's worker, with computing between batches."""
    matrix = torch.randn(256, 256)
    batches = iter(DataLoader(Ready(), 8, num_workers=1))
    found = []
    for _ in range(60):
        timed(torch.mm, (matrix, matrix), 10)
        found.append(timed(next, (batches,), 1))
    return float(np.quantile(found[10:], 0.5))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--forms", nargs="+", default=["bfloat16", "channels_last"])
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    measured(read(given.trace), given.forms).save(given.out)


if __name__ == "__main__":
    main()
