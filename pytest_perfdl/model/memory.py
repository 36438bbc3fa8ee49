"""Breakdown of the memory at a peak: every byte belongs to one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pytest_perfdl.model.step_part import common_module

Category = Literal[
    "parameters", "gradients", "optimizer state", "activations", "temporaries", "inputs", "other", "allocator"
]
"""`activations` are saved for the backward pass, `other` is what was allocated before anybody looked, and `allocator`
what a device's allocator adds: rounding."""
CATEGORIES: tuple[Category, ...] = get_args(Category)
OF_PARAMETERS: frozenset[Category] = frozenset({"parameters", "gradients", "optimizer state"})
"""What there is because there is a parameter."""
Phase = Literal["setup", "input", "forward", "backward", "optimizer", ""]
"""In which part of a test memory was allocated: before its steps, fetching a batch, or in a step."""


@dataclass(frozen=True, slots=True)
class Held:
    """The storage of a tensor that Python can reach."""

    bytes: int
    device: str
    """`cpu`, `cuda:0`."""
    dtype: str
    shape: tuple[int, ...]
    category: Category | None = None
    """`None` where it is nothing of a model or an optimizer."""
    name: str = ""
    """Of the parameter or buffer that it is, or belongs to: "GPT.lm_head.weight"."""
    shared: tuple[str, ...] = ()
    """Other names of the same parameter."""

    @property
    def module(self) -> str:
        """Path of the module that has the parameter or buffer."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Tensors alive at the peak that are alike: of one line, module and phase, one type and shape."""

    category: Category
    module: str
    """Path of the module that they were allocated in or, of parameters, belong to; empty where none is known."""
    line: str
    """The innermost line of the user's code, "model.py(41): GPT.__init__"; empty where it is not known."""
    phase: Phase
    operator: str
    """That allocated them; empty where none is known."""
    dtype: str
    """"float32"; empty where it is not known."""
    shape: str
    """"[8, 128, 256]"; empty where it is not known."""
    tensors: int
    """Allocations; tensors that share one storage are one."""
    bytes: int
    lives_from: int
    """When the first of them was allocated, in nanoseconds from the step's beginning; negative for before it."""
    lives_to: int | None
    """When the last of them was freed; `None` for not within the step."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters, or of those that gradients and optimizer state belong to; at most a few.

    A parameter that several modules share has all of their names.
    """
    callers: tuple[str, ...] = ()
    """The lines of the user's code that led to `line`, the nearest first."""
    kept: bool = False
    """Whether it was allocated in an earlier step, and is neither of a model nor of an optimizer."""


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """The memory of one device at its peak."""

    device: str
    """`cpu`, `cuda:0`."""
    rows: tuple[MemoryRow, ...]
    """The largest first. Their bytes add up to `peak_bytes`."""
    peak_bytes: int
    at_ns: int
    """When the peak was first reached, in nanoseconds from the step's beginning."""
    step_ns: int
    """Length of the step, slower than an ordinary one where lines were recorded."""
    curve: Sequence[tuple[int, int]] = ()
    """Allocated bytes over the step, thinned out: (nanoseconds, bytes)."""
    notes: tuple[str, ...] = ()
    """What is not as it should be, or not known."""
    reserved_bytes: int | None = None
    """What the allocator holds of the device at the peak; `None` where it holds nothing apart."""
    moment: MemoryRow | None = None
    """What the allocation that reached the peak belongs to; `None` where most was allocated before the step."""
    passed: tuple[MemoryRow, ...] = ()
    """What the step allocated that was not alive at the peak: the largest rows."""
    step_ends: tuple[int, ...] = ()
    """Allocated bytes at the end of each step that was recorded, garbage collected."""
    growing: tuple[MemoryRow, ...] = ()
    """Of what was allocated in each of the last steps and not freed since, the last step's part; largest first."""

    @property
    def residual(self) -> int:
        """Bytes that no row has; 0."""
        return self.peak_bytes - sum(row.bytes for row in self.rows)

    def by_category(self) -> dict[Category, int]:
        """Bytes of each category that there is."""
        found = dict.fromkeys(CATEGORIES, 0)
        for row in self.rows:
            found[row.category] += row.bytes
        return {category: size for category, size in found.items() if size}


Movement = Literal["new", "gone", "more", "fewer", "larger", "smaller", "dtype", "longer", "shorter", "moment"]
"""What became of tensors at the peak. `dtype`: another element type; `longer` and `shorter`: allocated on both sides,
and alive at the peak of one; `moment`: the same, where the peak is at another moment."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row of two accounts; a missing side is `None`."""

    base: MemoryRow | None
    new: MemoryRow | None
    movement: Movement

    @property
    def bytes(self) -> int:
        """By how much it changes the peak."""
        return (self.new.bytes if self.new else 0) - (self.base.bytes if self.base else 0)

    @property
    def row(self) -> MemoryRow:
        """The row as it is now, or as it was."""
        row = self.new or self.base
        assert row is not None
        return row


@dataclass(frozen=True, slots=True)
class MemoryCause:
    """Rows that changed for one reason: of the same parameters, or allocated at the same line."""

    changes: tuple[RowChange, ...]
    """The first says where it comes from."""
    shared: str = ""
    """The parameter that the other side shares with the cause's; empty where it shares none."""

    @property
    def bytes(self) -> int:
        """By how much they change the peak together."""
        return sum(change.bytes for change in self.changes)

    @property
    def row(self) -> MemoryRow:
        """What says where it comes from."""
        return self.changes[0].row

    @property
    def movement(self) -> Movement:
        """What became of the tensors that say where it comes from."""
        return self.changes[0].movement

    @property
    def module(self) -> str:
        """The innermost module around all of them, or around those with most of the bytes; empty for none."""
        inside = [change for change in self.changes if change.row.module]
        most = 2 * sum(abs(change.bytes) for change in inside) > sum(abs(change.bytes) for change in self.changes)
        return common_module([change.row.module for change in (inside if most else self.changes)])


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """What would lower a peak."""

    how: str
    """What to do, in the words of PyTorch."""
    predicted_peak_bytes: int
    saved_bytes: int
    step_change: float | None
    """Predicted change of the step's time, as a share of it; `None` where it is not known."""
    example: str
    """File that shows it before and after; empty where there is none."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """How the peak of one call's step differs from the other side's."""

    call: str
    base: MemoryAccount | None
    """`None` where the other side was not accounted for."""
    new: MemoryAccount
    causes: tuple[MemoryCause, ...] = ()
    """What says most about the change first. Their bytes add up to that of the peaks."""
    growth: int = 0
    """Bytes that each step keeps."""
    advice: tuple[MemoryAdvice, ...] = ()
    """What would lower the peak, what saves most first."""
