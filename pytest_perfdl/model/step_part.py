"""A part of a step: all time of one kind in one place of the model.

`analysis` (which computes the parts of a trace), `judge` (which matches those of two sides) and `report` share this
type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

ANY = "*"
"""Placeholder for a number in a module's path."""

PartKind = Literal["kernel", "operator", "idle"]
Phase = Literal["forward", "backward", "optimizer", ""]


@dataclass(frozen=True, slots=True)
class Part:
    """The identity of a part; what is not known is empty."""

    kind: PartKind
    """A kernel, copy or memset on a device; an operator's own time on the host; a class of idle time."""
    name: str
    """The kernel's, the operator's or the class's."""
    path: tuple[str, ...] = ()
    """Operators around it from the outermost to the innermost; a kernel's ends with the one that launched it, and is
    empty where that was a graph, whose replay any operator may have called. Of time
    of Python whose `function` is known the annotation around it."""
    shapes: str = ""
    """Of the innermost operator's inputs, as JSON: "[[64, 512], [512]]"."""
    module: str = ""
    """Path of the module it runs in, "Net_0.Block_1"."""
    line: str = ""
    """The user's line it comes from, "train.py(12): step"."""
    function: str = ""
    """For time of Python: what that line calls, "torch/nn/utils/clip_grad.py(40): clip_grad_norm_", or else the
    annotation around it."""
    phase: Phase = ""
    node: str = ""
    """Of a kernel that a CUDA graph launched: its graph and node, counted from 1 in the order of their first replay and
    of their ids, "1.4", so that equal graphs of two runs agree."""
    node_name: str = field(default="", compare=False)
    """The same as the trace has it: "graph 3, node 17"."""

    @property
    def operator(self) -> str:
        """The operator itself, or the one that launched the kernel; empty if there is none."""
        if self.kind == "operator":
            return self.name
        return self.path[-1] if self.path else ""


def common_module(modules: Iterable[str]) -> str:
    """The innermost module around all of these; `*` is a number in which they differ, as in torch's parallel plans.

    >>> common_module(["GPT.h.0.attn", "GPT.h.1.attn"]), common_module(["GPT.h.0.attn", "GPT.h.1.mlp"])
    ('GPT.h.*.attn', 'GPT.h')
    >>> common_module(["Block_0.MLP_0", "Block_1.MLP_1"]), common_module(["GPT", ""])
    ('Block_*.MLP_*', '')
    """
    shared: list[str] = []
    for levels in zip(*(module.split(".") for module in modules), strict=False):
        if len(set(levels)) == 1:
            shared.append(levels[0])
        elif len(stems := {any_number(level) for level in levels}) == 1:
            shared.append(stems.pop())
        else:
            break
    # All blocks are no place that says more than what holds them.
    while shared and shared[-1] == ANY:
        shared.pop()
    return ".".join(shared)


def any_number(level: str) -> str:
    """One level of a module's path with `*` for its number.

    >>> any_number("11"), any_number("Block_3"), any_number("conv1")
    ('*', 'Block_*', 'conv1')
    """
    head, bar, number = level.rpartition("_")
    return f"{head}{bar}{ANY}" if number.isdigit() else level


def is_inside(module: str, around: str) -> bool:
    """Whether a module's path is at or below another's, which may have `*` for numbers.

    >>> is_inside("GPT.h.3.attn.out", "GPT.h.*.attn"), is_inside("GPT.h.3", "GPT.h.*.attn")
    (True, False)
    """
    if not around:
        return True
    levels, outer = module.split("."), around.split(".")
    if len(levels) < len(outer):
        return False
    return all(own in (level, any_number(level)) for level, own in zip(levels, outer, strict=False))
