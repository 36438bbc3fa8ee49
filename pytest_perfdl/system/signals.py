"""SIGTERM and SIGHUP end a run like Ctrl-C: fixtures are torn down, processes ended, directories removed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C, as of shells."""

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Ending:
    """Turns these signals into KeyboardInterrupt from now on, where nobody else handles or ignores them."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._held = False
        self._ours: list[int] = []
        if threading.current_thread() is threading.main_thread():
            self._ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
            for number in self._ours:
                signal.signal(number, self._handle)

    def hold(self) -> None:
        """From now on only remember a signal: the run is cleaning up already."""
        self._held = True

    def finish(self) -> None:
        """Restore what was before; if a signal came, this process ends by it, as its sender expects."""
        for number in self._ours:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)
        if self._received is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os.kill(os.getpid(), self._received)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._received is None:
            self._received = number
            if not self._held:
                raise KeyboardInterrupt(signal.Signals(number).name)
