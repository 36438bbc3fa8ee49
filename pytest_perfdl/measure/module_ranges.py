"""Records a profiler range around every module's forward pass, named by the module's path in the model.

The profiler names modules by class and instance number, and only when it records Python stacks, which doubles the time
of small steps. Ranges from hooks cost some microseconds per module, and have the names in the model:
"GPT.blocks.0.attn". They are torch's fast ranges: `record_function` goes through the dispatcher and takes 5 us whether
it is recorded or not, 20 us with cold caches. The profiler reports them as operators; the trace reader corrects this.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pytest_perfdl.measure import compiling
from pytest_perfdl.measure.optional import Optional
from pytest_perfdl.model.record import Finding
from pytest_perfdl.trace.annotations import MODULE

_WHAT = "the modules of operators"
"""What is not known without them."""


@contextlib.contextmanager
def module_ranges(notes: list[Finding]) -> Iterator[None]:
    """Name the modules that run meanwhile; where that fails, a note says so and the steps go on without.

    Not where torch.compile has compiled something: its guards know that there were no hooks, so the step would be
    compiled anew.
    """
    if compiling.has_compiled():
        yield
        return
    hooks: list[Any] = []
    with Optional("no-modules", _WHAT, notes):
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        ranges = _Ranges(notes)
        hooks.append(register_module_forward_pre_hook(ranges.enter))
        # A forward pass that raises must close its range too.
        hooks.append(register_module_forward_hook(ranges.leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Ranges:
    """The ranges that are open, and the paths of the modules seen so far."""

    def __init__(self, notes: list[Finding]) -> None:
        from torch._C._profiler import _RecordFunctionFast

        self._range = _RecordFunctionFast
        self._notes = notes
        self._failed = False
        self._open: list[tuple[Any, str]] = []
        self._paths: dict[Any, str] = {}
        self._roots: Counter[str] = Counter()

    def enter(self, module: Any, _inputs: object) -> None:
        if self._failed:
            return
        self._failed = True
        with Optional("no-modules", _WHAT, self._notes):
            path = self._path(module)
            opened = self._range(MODULE + path)
            opened.__enter__()
            self._open.append((opened, path))
            self._failed = False

    def leave(self, _module: object, _inputs: object, _output: object) -> None:
        # Once one could not be opened, which of them ends here is not known: all end, from the innermost on.
        while self._open:
            self._open.pop()[0].__exit__(None, None, None)
            if not self._failed:
                return

    def _path(self, module: Any) -> str:
        """The path below the outermost module in which this one was first seen."""
        if module not in self._paths:
            kind = type(module).__name__
            if self._open:
                # Made while its parent ran, or held by it in a way that torch does not know of.
                root = f"{self._open[-1][1]}.{kind}"
            else:
                number = self._roots[kind]
                self._roots[kind] += 1
                root = f"{kind}_{number}" if number else kind
            for name, inner in module.named_modules():
                self._paths.setdefault(inner, f"{root}.{name}" if name else root)
        return self._paths[module]
