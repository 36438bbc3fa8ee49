"""Breakdown of the memory at a peak: every byte belongs to one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pytest_perfdl.model.step_part import common_module

Category = Literal[
    "parameters", "gradients", "optimizer state", "activations", "temporaries", "inputs", "other", "allocator"
]
"""`activations` are saved for the backward pass, `other` was allocated before recording started, and `allocator` is
rounding by a device's allocator."""
CATEGORIES: tuple[Category, ...] = get_args(Category)
OF_PARAMETERS: frozenset[Category] = frozenset({"parameters", "gradients", "optimizer state"})
"""Categories that belong to parameters."""
Phase = Literal["setup", "input", "forward", "backward", "optimizer", ""]
"""The part of a test in which memory was allocated: before its steps, fetching a batch, or in a step."""


@dataclass(frozen=True, slots=True)
class Held:
    """The storage of a tensor that Python can reach."""

    bytes: int
    device: str
    """`cpu`, `cuda:0`."""
    dtype: str
    shape: tuple[int, ...]
    category: Category | None = None
    """`None` if it does not belong to a model or an optimizer."""
    name: str = ""
    """Name of its parameter or buffer: "GPT.lm_head.weight"."""
    shared: tuple[str, ...] = ()
    """Other names of the same parameter."""

    @property
    def module(self) -> str:
        """Path of the module that has the parameter or buffer."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Similar tensors alive at the peak: same line, module, phase, type and shape."""

    category: Category
    module: str
    """Path of the module that allocated them, or that has the parameters; empty if unknown."""
    line: str
    """The innermost line of user code, "model.py(41): GPT.__init__"; empty if unknown."""
    phase: Phase
    operator: str
    """The operator that allocated them; empty if unknown."""
    dtype: str
    """"float32"; empty if unknown."""
    shape: str
    """"[8, 128, 256]"; empty if unknown."""
    tensors: int
    """Number of allocations; tensors with shared storage count once."""
    bytes: int
    lives_from: int
    """When the first was allocated, in nanoseconds from the start of the step; negative for before."""
    lives_to: int | None
    """When the last was freed; `None` if not within the step."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters, or of those that gradients and optimizer state belong to; at most a few.

    A parameter that several modules share has all of their names.
    """
    callers: tuple[str, ...] = ()
    """The lines of user code that called `line`, nearest first."""
    kept: bool = False
    """Whether it was allocated in an earlier step, and belongs neither to a model nor to an optimizer."""


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """Breakdown of the memory of one device at its peak."""

    device: str
    """`cpu`, `cuda:0`."""
    rows: tuple[MemoryRow, ...]
    """The largest first. Their bytes add up to `peak_bytes`."""
    peak_bytes: int
    at_ns: int
    """When the peak was first reached, in nanoseconds from the start of the step."""
    step_ns: int
    """Duration of the step, which recording of lines makes slower."""
    curve: Sequence[tuple[int, int]] = ()
    """Allocated bytes over the step, thinned out: (nanoseconds, bytes)."""
    notes: tuple[str, ...] = ()
    """Problems and missing parts."""
    reserved_bytes: int | None = None
    """Memory that the allocator reserves at the peak; `None` if it reserves none."""
    moment: MemoryRow | None = None
    """The row of the allocation that reached the peak; `None` if the peak was before the step."""
    passed: tuple[MemoryRow, ...] = ()
    """The largest rows that the step allocated and that were not alive at the peak."""
    step_ends: tuple[int, ...] = ()
    """Allocated bytes at the end of every recorded step, after garbage collection."""
    growing: tuple[MemoryRow, ...] = ()
    """Memory that every one of the last steps allocated and did not free (last step only); largest first."""

    @property
    def residual(self) -> int:
        """Bytes that are in no row; 0."""
        return self.peak_bytes - sum(row.bytes for row in self.rows)

    def by_category(self) -> dict[Category, int]:
        """Bytes by category, without empty ones."""
        found = dict.fromkeys(CATEGORIES, 0)
        for row in self.rows:
            found[row.category] += row.bytes
        return {category: size for category, size in found.items() if size}


Movement = Literal["new", "gone", "more", "fewer", "larger", "smaller", "dtype", "longer", "shorter", "moment"]
"""How tensors at the peak changed. `dtype`: different element type; `longer` and `shorter`: allocated on both sides,
but alive at the peak of one only; `moment`: the same, if the peak is at a different time."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row of two accounts; a missing side is `None`."""

    base: MemoryRow | None
    new: MemoryRow | None
    movement: Movement

    @property
    def bytes(self) -> int:
        """Its contribution to the change of the peak."""
        return (self.new.bytes if self.new else 0) - (self.base.bytes if self.base else 0)

    @property
    def row(self) -> MemoryRow:
        """The current row, or the baseline's if it is gone."""
        row = self.new or self.base
        assert row is not None
        return row


@dataclass(frozen=True, slots=True)
class MemoryCause:
    """Rows with a common cause: of the same parameters, or allocated at the same line."""

    changes: tuple[RowChange, ...]
    """The first one locates the cause."""
    shared: str = ""
    """The parameter that the baseline shares with the cause's; empty if there is none."""

    @property
    def bytes(self) -> int:
        """Their total contribution to the change of the peak."""
        return sum(change.bytes for change in self.changes)

    @property
    def row(self) -> MemoryRow:
        """The row that locates the cause."""
        return self.changes[0].row

    @property
    def movement(self) -> Movement:
        """How the tensors of that row changed."""
        return self.changes[0].movement

    @property
    def module(self) -> str:
        """The innermost module around all of them, or around those with most of the bytes; empty for none."""
        inside = [change for change in self.changes if change.row.module]
        most = 2 * sum(abs(change.bytes) for change in inside) > sum(abs(change.bytes) for change in self.changes)
        return common_module([change.row.module for change in (inside if most else self.changes)])


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """A suggestion to lower a peak."""

    how: str
    """The change, as PyTorch code."""
    predicted_peak_bytes: int
    saved_bytes: int
    step_change: float | None
    """Predicted relative change of step time; `None` if unknown."""
    example: str
    """File with an example; empty if there is none."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """The change of the peak of one call, relative to the baseline."""

    call: str
    base: MemoryAccount | None
    """`None` without a breakdown of the baseline."""
    new: MemoryAccount
    causes: tuple[MemoryCause, ...] = ()
    """Most informative first. Their bytes add up to the change of the peak."""
    growth: int = 0
    """Bytes that every step leaves allocated."""
    advice: tuple[MemoryAdvice, ...] = ()
    """Suggestions, largest saving first."""
