"""FLOPs of a step by torch.utils.flop_counter (1 FMA = 2 FLOP), with what it does not know added.

On the CPU it returns 0 for scaled_dot_product_attention, for an LSTM under no_grad and for int8 linear: the
first two are registered here; whatever else does arithmetic and is not counted is listed by name.
"""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

_ARITHMETIC = re.compile(r"(^|_)(mm|bmm|addmm|matmul|linear|conv\w*|attention|lstm|gru|rnn\w*|einsum|dot)(_|$)")
"""Operators whose name says that most of their work is multiplying and adding."""
_WRAPPED = "__dynamo_disable"
"""Where torch keeps the form of a function that Dynamo does not trace."""


class Counter:
    """Counts the FLOPs of what runs inside the `with` block."""

    def __init__(self) -> None:
        self._mode: Any = None
        self._undisturbed: Any = None
        self._unknown: set[str] = set()
        self.total = 0

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Operators that look like arithmetic and were not counted, sorted."""
        return tuple(sorted(self._unknown))

    def __enter__(self) -> Counter:
        self._undisturbed = contextlib.ExitStack()
        self._undisturbed.enter_context(_without_dynamo())
        # The counter follows modules by global hooks, of which torch.compile warns in the middle of the step.
        self._undisturbed.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*global hooks on modules")
        self._mode = _listing_mode(self._unknown)
        self._mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)
        self._undisturbed.__exit__(kind, error, trace)
        self.total = int(self._mode.get_total_flops())


def _listing_mode(unknown: set[str]) -> Any:
    """A FLOP counter that also notes the arithmetic it does not know."""
    from torch.utils.flop_counter import FlopCounterMode

    class Mode(FlopCounterMode):
        def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
            if func_packet not in self.flop_registry and _ARITHMETIC.search(func_packet.__name__):
                unknown.add(str(func_packet))
            return super()._count_flops(func_packet, out, args, kwargs)

    return Mode(display=False, custom_mapping=_formulas())


@contextlib.contextmanager
def _without_dynamo() -> Iterator[None]:
    """Keep the counter from importing Dynamo, which takes a second, in a process that has not imported it.

    torch wraps the counter so that Dynamo never traces it, and the wrapper imports Dynamo to say so. Where
    Dynamo is not loaded nothing traces: the counter is then marked as already wrapped.
    """
    from torch.utils import flop_counter

    mode: Any = getattr(flop_counter, "_FlopCounterMode", None)
    inner = getattr(getattr(mode, "__torch_dispatch__", None), "__wrapped__", None)
    if inner is None or "torch._dynamo" in sys.modules:
        yield
        return
    setattr(inner, _WRAPPED, inner)
    try:
        yield
    finally:
        delattr(inner, _WRAPPED)


def _formulas() -> dict[Any, Callable[..., int]]:
    """FLOP formulas for operators that torch leaves out, where this torch has them."""
    import torch
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    def attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_backward_flop_count(grad, query, key, value))

    def rnn_layer(inputs: Any, w_ih: Any, w_hh: Any, *_: Any, **__: Any) -> int:
        # One layer over [time, batch, features]: two products a time step, 2 FLOP a multiply-add.
        time, batch, features = inputs
        return int(2 * time * batch * (w_ih[0] * features + w_hh[0] * w_hh[1]))

    wanted: dict[str, Callable[..., int]] = {
        "_scaled_dot_product_flash_attention_for_cpu": attention,
        "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
        "mkldnn_rnn_layer": rnn_layer,
    }
    return {getattr(torch.ops.aten, name): formula for name, formula in wanted.items() if hasattr(torch.ops.aten, name)}
