"""What a step is made of: a tree of these values, built once and played for every step."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, TypeAlias

BYTES = {"c10::BFloat16": 2, "float": 4, "long int": 8, "unsigned char": 1}
"""Size of an element, by the type's name as the profiler writes it."""

Stream: TypeAlias = Literal["compute", "communication"]
Tag: TypeAlias = Hashable
"""Names an allocation from the operator that makes it to the one that frees it."""


@dataclass(frozen=True)
class Tensor:
    """An operator's input."""

    shape: tuple[int, ...]
    dtype: str = "c10::BFloat16"

    @property
    def elements(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def bytes(self) -> int:
        return self.elements * BYTES[self.dtype]

    @property
    def strides(self) -> tuple[int, ...]:
        """Of a contiguous tensor."""
        strides: list[int] = []
        step = 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))


Input: TypeAlias = Tensor | str
"""A tensor, or a scalar's or list's text; empty text for an argument that is None."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel with its usual duration and its launch geometry."""

    name: str
    ns: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared: int
    occupancy: int
    stream: Stream = "compute"
    extra: str = ""
    """Further arguments as JSON text: those of a collective."""


@dataclass(frozen=True)
class Launch:
    """A runtime or driver call that puts a kernel on its stream."""

    kernel: Kernel
    api: str = "cudaLaunchKernel"


@dataclass(frozen=True)
class Copy:
    """`cudaMemcpyAsync` and the copy."""

    kind: str
    bytes: int


@dataclass(frozen=True)
class Memset:
    """`cudaMemsetAsync` and the memset."""

    bytes: int


@dataclass(frozen=True)
class Call:
    """A runtime call that starts nothing on the device."""

    api: str
    ns: int


@dataclass(frozen=True)
class Synchronize:
    """`cudaStreamSynchronize`: the host waits for the compute stream."""


@dataclass(frozen=True)
class Join:
    """`cudaStreamWaitEvent`: `waiting` goes on when what is on the other stream by now is done."""

    waiting: Stream


@dataclass(frozen=True)
class Allocate:
    """Memory of the device, or of the host, that lives until it is freed."""

    tag: Tag
    bytes: int
    on_host: bool = False


@dataclass(frozen=True)
class Gradient:
    """Memory for the gradient that flows to the next node of the backward pass, which frees it."""

    bytes: int


@dataclass(frozen=True)
class Free:
    """The end of an allocation."""

    tag: Tag


@dataclass(frozen=True)
class Backward:
    """What a forward operator leaves on the tape."""

    name: str
    children: tuple[Node, ...]
    parameters: tuple[tuple[Tag, Tensor], ...] = ()
    """Whose gradients are complete after it."""


@dataclass(frozen=True)
class Op:
    """An ATen operator."""

    name: str
    inputs: tuple[Input, ...] = ()
    children: tuple[Node, ...] = ()
    grad: bool = False
    """Whether it runs under autograd, and so shows a sequence number."""
    backward: Backward | None = None
    extra: str = ""
    """Further arguments as JSON text."""


@dataclass(frozen=True)
class Frame:
    """A call of a Python function."""

    name: str
    children: tuple[Node, ...] = ()
    module: int | None = None
    """`Python module id`, for frames of `nn.Module`."""


@dataclass(frozen=True)
class Annotation:
    """A `record_function` range; `{step}` in its name is the step's number."""

    name: str
    children: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Work:
    """Python that the profiler does not see."""

    ns: int


@dataclass(frozen=True)
class RunBackward:
    """The tape is played on autograd's thread while this one waits."""

    reduces: bool
    """Whether the gradients are complete with it, and so are summed over the ranks."""


Node: TypeAlias = (
    Op
    | Frame
    | Annotation
    | Launch
    | Copy
    | Memset
    | Call
    | Synchronize
    | Join
    | Allocate
    | Gradient
    | Free
    | Work
    | RunBackward
)
