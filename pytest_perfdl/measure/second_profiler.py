"""Refuses a second torch profiler. Only one can run in a process: where two do, the end of one crashes the other's."""

from __future__ import annotations

from typing import Any, NoReturn

from pytest_perfdl.model.failures import PerfError

_STARTS = ("_prepare_profiler", "_enable_profiler")
"""What all of torch's profilers call to start, as names in `torch.autograd.profiler`."""
RUNNING = (
    "a torch profiler is already running (started by a fixture, another thread or the test), and only one can run at a "
    "time: stop it before the measured steps"
)
STARTED = (
    "the test starts a torch profiler while its step is profiled, and only one can run at a time: take the "
    "profiler out of the step"
)


def refuse_running() -> None:
    """Check that no profiler is on.

    Raises
    ------
    PerfError
        One is, in any thread.
    """
    import torch
    from torch.autograd import profiler

    here = getattr(torch.autograd, "_profiler_enabled", bool)
    if here() or getattr(profiler, "_is_profiler_enabled", False):
        raise PerfError(RUNNING)


class Refusal:
    """Has no other profiler start, from `begin` until `end`: around code of the test while ours is on."""

    def __init__(self) -> None:
        self._real: dict[str, Any] = {}
        self._tried = False

    def begin(self) -> None:
        """From now on whatever starts a profiler raises `PerfError`, in any thread."""
        from torch.autograd import profiler

        names = vars(profiler)
        self._real = {name: names[name] for name in _STARTS if name in names}
        names.update(dict.fromkeys(self._real, self._refuse))

    def end(self) -> None:
        """Let profilers start again."""
        from torch.autograd import profiler

        vars(profiler).update(self._real)

    def check(self) -> None:
        """Fail if something tried, also where the test caught the exception.

        Raises
        ------
        PerfError
        """
        if self._tried:
            raise PerfError(STARTED)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        self._tried = True
        raise PerfError(STARTED)
