"""A table of operators: 500 cases of ATen operators, shapes and element types, measured and judged together."""

import pytest
import torch
from torch.nn import functional

UNARY = (
    torch.relu,
    torch.sigmoid,
    torch.exp,
    torch.log,
    torch.tanh,
    torch.erf,
    functional.gelu,
    functional.silu,
    torch.rsqrt,
)
BINARY = (torch.add, torch.mul, torch.maximum, torch.where)
ROWS = (torch.sum, torch.amax, torch.softmax, torch.cumsum, functional.layer_norm, functional.rms_norm)
PRODUCTS = (torch.mm, functional.linear, torch.addmm, torch.bmm)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32)
SIZES = ((8, 64), (32, 64), (64, 128), (16, 512), (128, 128))

CASES = [
    {"op": op, "dtype": dtype, "rows": rows, "columns": columns}
    for op in (*UNARY, *BINARY, *ROWS, *PRODUCTS)
    for dtype in DTYPES
    for rows, columns in SIZES
    # Most operators have no integers.
    if dtype.is_floating_point or op in (torch.relu, *BINARY, torch.sum, torch.amax, torch.cumsum)
]


def make(op, dtype, rows, columns):
    """The operator with its arguments."""

    def numbers(*shape):
        return torch.randn(shape).abs().mul(4).add(0.1).to(dtype)

    x = numbers(rows, columns)
    others = {
        torch.where: (x > 1, x, x * 2),
        torch.mm: (x, numbers(columns, 32)),
        functional.linear: (x, numbers(32, columns)),
        torch.addmm: (numbers(32), x, numbers(columns, 32)),
        torch.bmm: (numbers(4, rows, columns), numbers(4, columns, 8)),
        torch.softmax: (x, -1),
        torch.cumsum: (x, -1),
        torch.sum: (x, -1),
        torch.amax: (x, -1),
        functional.layer_norm: (x, (columns,)),
        functional.rms_norm: (x, (columns,)),
    }
    return op, *others.get(op, (x, x) if op in BINARY else (x,))


def call(op, *args):
    """One call of a case."""
    return op(*args)


@pytest.mark.perf
def test_operators(perf):
    perf.table(call, CASES, setup=make)
