"""What an operator has to compute and to move at least, from the shapes and arguments that a trace records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]

_TYPES = {
    "bool": ("bool", 1),
    "unsigned char": ("uint8", 1),
    "signed char": ("int8", 1),
    **dict.fromkeys(("short", "short int"), ("int16", 2)),
    "int": ("int32", 4),
    **dict.fromkeys(("long", "long int", "long long"), ("int64", 8)),
    **dict.fromkeys(
        (f"c10::Float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")), ("float8", 1)
    ),
    **dict.fromkeys(("c10::Half", "at::Half"), ("float16", 2)),
    **dict.fromkeys(("c10::BFloat16", "at::BFloat16"), ("bfloat16", 2)),
    "float": ("float32", 4),
    "double": ("float64", 8),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}
"""Element types as `Input type` names them, in the order in which they promote, and their bytes."""

_RANK = {name: rank for rank, (name, _) in enumerate(_TYPES.values())}
_SIZE = dict(_TYPES.values())
_CODES = {5: "float16", 6: "float32", 7: "float64", 15: "bfloat16", 23: "float8", 24: "float8"}
"""c10::ScalarType of an argument that asks for an element type."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """The least that one call has to do."""

    flops: int
    """Floating-point operations; one fused multiply-add is 2."""
    bytes: int
    """Bytes of every input read once and every output written once."""
    dtype: str
    """Element type that the arithmetic is done on."""
    overwritten: int = 0
    """Bytes written where others were read, by operators in place: memory that is used once."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument that is a tensor."""

    shape: Shape
    dtype: str
    stored: int
    """Elements in memory: those that differ in a dimension of stride 0 (expanded) are one."""

    @property
    def bytes(self) -> int:
        """Bytes to read it once."""
        return self.stored * _SIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """The arguments of one operator by position; what is no tensor, or not recorded, is `None` or empty."""

    arguments: tuple[Tensor | None, ...]
    texts: tuple[str, ...]
    """`Concrete Inputs`: other arguments as text."""

    @classmethod
    def recorded(
        cls, dims: Sequence[object], types: Sequence[object], strides: Sequence[object], texts: Sequence[object]
    ) -> OperatorCall:
        """A call as `Input Dims`, `Input type`, `Input Strides` and `Concrete Inputs` have it."""
        arguments = []
        for index, kind in enumerate(types):
            shape = dims[index] if index < len(dims) else None
            stride = strides[index] if index < len(strides) else None
            arguments.append(_tensor(shape, kind, stride))
        return cls(tuple(arguments), tuple(text if isinstance(text, str) else "" for text in texts))

    @property
    def tensors(self) -> list[Tensor]:
        """The arguments that are tensors, in order."""
        return [tensor for tensor in self.arguments if tensor is not None]

    def tensor(self, index: int) -> Tensor | None:
        """The argument at a position, if it is a tensor."""
        return self.arguments[index] if index < len(self.arguments) else None

    def read(self, *indices: int) -> int:
        """Bytes of the tensors at these positions."""
        return sum(tensor.bytes for tensor in map(self.tensor, indices) if tensor is not None)

    def text(self, index: int) -> str:
        """The argument at a position as text, empty if it is not recorded."""
        return self.texts[index] if index < len(self.texts) else ""

    def integers(self, index: int, count: int) -> Shape | None:
        """A list of integers at a position, one value standing for all; `None` if it is not recorded."""
        found = tuple(map(int, re.findall(r"-?\d+", self.text(index))))
        return found * count if len(found) == 1 else found if len(found) == count else None

    def flag(self, index: int) -> bool | None:
        """A truth value at a position; `None` if it is not recorded."""
        return {"True": True, "False": False}.get(self.text(index))


Model = Callable[[OperatorCall], "OperatorCost | None"]


def size_of(dtype: str) -> int:
    """Bytes of one element.

    >>> size_of("bfloat16")
    2
    """
    return _SIZE[dtype]


def bytes_of_type(text: str) -> int:
    """Bytes of one element of a type as `Input type` names it; 4 for one that is not known.

    >>> bytes_of_type("c10::BFloat16"), bytes_of_type("")
    (2, 4)
    """
    return _TYPES.get(text, ("", 4))[1]


def requested_dtype(call: OperatorCall, index: int) -> str | None:
    """The element type that an argument asks for, `None` if it does not or is not known."""
    text = call.text(index)
    return _CODES.get(int(text)) if text.isdecimal() else None


def promoted(tensors: Sequence[Tensor]) -> str:
    """Element type of an elementwise result: the highest of the tensors with dimensions, else of all."""
    weighty = [tensor for tensor in tensors if tensor.shape] or tensors
    return max((tensor.dtype for tensor in weighty), key=_RANK.__getitem__)


def broadcast(tensors: Sequence[Tensor]) -> Shape | None:
    """The shape to which shapes broadcast; `None` if they do not."""
    rank = max(len(tensor.shape) for tensor in tensors)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    shape = tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))
    return shape if all(size in (1, to) for row in padded for size, to in zip(row, shape, strict=True)) else None


def _tensor(shape: object, kind: object, stride: object) -> Tensor | None:
    known = _TYPES.get(kind) if isinstance(kind, str) else None
    if known is None or not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        return None
    strides = stride if isinstance(stride, list) and len(stride) == len(shape) else [1] * len(shape)
    stored = math.prod(size for size, step in zip(shape, strides, strict=True) if step != 0 or size == 0)
    return Tensor(tuple(shape), known[0], stored)
