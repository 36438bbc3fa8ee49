"""FLOPs of a step from torch.utils.flop_counter (1 FMA = 2 FLOP), with formulas for operators that it lacks.

On the CPU it returns 0 for scaled_dot_product_attention, for an LSTM under no_grad and for int8 linear. Formulas for
the first two are registered here; other operators without a formula are listed by name.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

_ARITHMETIC = re.compile(r"(^|_)(mm|bmm|addmm|matmul|linear|conv\w*|attention|lstm|gru|rnn\w*|einsum|dot)(_|$)")
"""Operators whose name says that most of their work is multiplying and adding."""
_WRAPPED = "__dynamo_disable"
"""Where torch keeps the form of a function that Dynamo does not trace."""


class Counter:
    """Counts the FLOPs of what runs inside the `with` block."""

    def __init__(self) -> None:
        self._unknown: set[str] = set()
        self._mode: Any = None
        self._undisturbed: Any = None
        self.total = 0

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Operators that look like arithmetic and were not counted, sorted."""
        return tuple(sorted(self._unknown))

    def __enter__(self) -> Counter:
        self._mode, dispatching = _listing_mode(self._unknown)
        self._undisturbed = _without_dynamo(dispatching)
        self._undisturbed.__enter__()
        self._mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)
        self._undisturbed.__exit__(kind, error, trace)
        self.total = int(self._mode.get_total_flops())


class _NoModules:
    """In place of torch's follower of modules, which says in which of them FLOPs were spent.

    Its hooks fail on a module that is given a view of a parameter under `no_grad`, and torch.compile warns of them.
    """

    parents = ("Global",)

    def __enter__(self) -> _NoModules:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _listing_mode(unknown: set[str]) -> tuple[Any, tuple[type, ...]]:
    """A FLOP counter that notes the arithmetic it does not know and fails on nothing; the classes that dispatch for it.

    Torch's own takes operators apart where it has no formula, which nested tensors, having no sizes, do not bear.
    """
    import torch
    from torch.utils import flop_counter

    # Older versions of torch have one class for both.
    dispatching: Any = getattr(flop_counter, "_FlopCounterMode", flop_counter.FlopCounterMode)
    is_older = dispatching is flop_counter.FlopCounterMode
    plain = (torch.Tensor, torch.nn.Parameter)

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in plain for kind in types):
            # A subclass knows what it is made of: the operators on that come here next.
            return NotImplemented
        counter = getattr(self, "counter", self)
        counts = counter.flop_counts["Global"]
        before = dict(counts)
        try:
            if is_older and (out := _taken_apart(self, counter, func, args, kwargs or {})) is not NotImplemented:
                return out
            out = dispatching.__torch_dispatch__(self, func, types, args, kwargs)
        except Exception:
            # Run as a whole, it works, or fails as it does without a counter.
            counts.clear()
            counts.update(before)
            out = NotImplemented
        if out is not NotImplemented:
            return out
        out = func(*args, **(kwargs or {}))
        packet = getattr(func, "_overloadpacket", None)
        return out if packet is None else counter._count_flops(packet, out, args, kwargs or {})

    class Counting(flop_counter.FlopCounterMode):
        def __init__(self) -> None:
            super().__init__(display=False, custom_mapping=_formulas())
            self.mod_tracker: Any = _NoModules()

        def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
            formula = self.flop_registry.get(func_packet)
            if formula is None:
                if _ARITHMETIC.search(func_packet.__name__):
                    unknown.add(str(func_packet))
                return out
            try:
                int(formula(*args, **kwargs, out_val=out))
            except Exception:
                # It does not fit these arguments, or the number depends on their values.
                unknown.add(str(func_packet))
                return out
            return super()._count_flops(func_packet, out, args, kwargs)

    if is_older:
        one: Any = type("Counting", (Counting,), {"__torch_dispatch__": dispatch})
        return one(), (dispatching, one)
    own: Any = type("Dispatching", (dispatching,), {"__torch_dispatch__": dispatch})

    class Entering(Counting):
        def __enter__(self) -> Any:
            self.flop_counts.clear()
            self.mode = own(self)
            self.mode.__enter__()
            return self

    return Entering(), (dispatching, own)


def _taken_apart(mode: Any, counter: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """What a composite operator without a formula gives, run as its parts; `NotImplemented` for others.

    Under `inference_mode` a convolution comes as a whole. Newer counters of torch take it apart themselves, that of
    2.4 counts nothing.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    packet = getattr(func, "_overloadpacket", None)
    if packet is None or packet in counter.flop_registry or not hasattr(func, "decompose"):
        return NotImplemented
    # The counter's own `__enter__` would begin a new count.
    TorchDispatchMode.__enter__(mode)
    try:
        return func.decompose(*args, **kwargs)
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)


@contextlib.contextmanager
def _without_dynamo(dispatching: Sequence[Any]) -> Iterator[None]:
    """Keep the counter from importing Dynamo, which takes a second, in a process that has not imported it.

    torch wraps dispatching classes so that Dynamo never traces them, and the wrapper imports Dynamo to say so. Where
    Dynamo is not loaded nothing traces: they are then marked as already wrapped.
    """
    found = [getattr(kind.__torch_dispatch__, "__wrapped__", None) for kind in dispatching]
    inner = [] if "torch._dynamo" in sys.modules else [each for each in found if each is not None]
    for each in inner:
        setattr(each, _WRAPPED, each)
    try:
        yield
    finally:
        for each in inner:
            delattr(each, _WRAPPED)


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
