"""A two-way channel of pickled messages over one socket, which detects a dead peer.

A plain pipe does not: a process forked by the worker inherits the worker's end, so end-of-file comes only when that
process exits, too. So `receive` checks whether the peer is alive while it waits.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

from pytest_perfdl.model.errors import ChannelClosed, ChannelTimeout
from pytest_perfdl.system import clocks

_HEADER = struct.Struct("!Q")
_POLL_SECONDS = 0.1


class Channel:
    """One end of the channel."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._owner = os.getpid()
        self._buffer = bytearray()

    def fileno(self) -> int:
        """Descriptor of the socket, to hand to a child process."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, message: object) -> None:
        """Send one message, waiting for room.

        Raises
        ------
        ChannelClosed
            When the peer has closed its end, and in a process that was forked off the channel's own.
        """
        self._refuse_forked()
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self._socket.sendall(_HEADER.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, *, alive: Callable[[], bool] = lambda: True, deadline: float | None = None) -> Any:
        """Wait for one message.

        Parameters
        ----------
        alive
            Asked while nothing comes; once it is false, what was already sent is still delivered, then the
            channel counts as closed.
        deadline
            A `time.monotonic()` moment.

        Raises
        ------
        ChannelClosed, ChannelTimeout
        """
        self._refuse_forked()
        while True:
            message = self._complete()
            if message is not None:
                return pickle.loads(message)
            was_alive = alive()
            ready, _, _ = select.select([self._socket], [], [], _POLL_SECONDS if was_alive else 0)
            if ready:
                self._take()
            elif not was_alive:
                raise ChannelClosed
            elif deadline is not None and clocks.monotonic() > deadline:
                raise ChannelTimeout

    def received(self) -> Any | None:
        """A message that has come; `None` if none is complete.

        Raises
        ------
        ChannelClosed
            When the peer has closed its end, and everything that it sent was returned.
        """
        while (message := self._complete()) is None:
            if not select.select([self._socket], [], [], 0)[0]:
                return None
            self._take()
        return pickle.loads(message)

    def _take(self) -> None:
        """Read what has come, at least one byte."""
        try:
            chunk = self._socket.recv(1 << 20)
        except OSError as error:
            raise ChannelClosed from error
        if not chunk:
            raise ChannelClosed
        self._buffer += chunk

    def _refuse_forked(self) -> None:
        # Two that talk on one socket would take each other's messages.
        if os.getpid() != self._owner:
            raise ChannelClosed

    def _complete(self) -> bytes | None:
        if len(self._buffer) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._buffer)
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        message = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return message


def pair() -> tuple[Channel, socket.socket]:
    """A channel for this process and the raw socket for a child to inherit."""
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs
