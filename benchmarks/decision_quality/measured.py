"""The process that `record.py` measures: one workload, its steps timed by the plugin's own commands.

    python measured.py WORKLOAD SHARE DESCRIPTOR

Commands and answers (`pytest_perfdl.measure.commands`) go over the inherited socket DESCRIPTOR; each step is
followed by a busy wait for SHARE of what it took.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE / "scratch" / "src")]

from pytest_perfdl.isolate.channel import Channel  # noqa: E402
from pytest_perfdl.measure.commands import Reply  # noqa: E402
from pytest_perfdl.measure.prepare import prepare  # noqa: E402
from pytest_perfdl.measure.program import Program  # noqa: E402
from pytest_perfdl.record import Plan  # noqa: E402

READY = "ready"


class Answering:
    """The measuring side of the conversation."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def command(self) -> object:
        return self._channel.receive()

    def answer(self, reply: Reply) -> None:
        self._channel.send(reply)


def main(workload: str, share: str, descriptor: str) -> None:
    """Serve commands until told to finish."""
    channel = Channel(socket.socket(fileno=int(descriptor)))
    prepare(Plan(warmup=15, steps=40))
    from trial_package.models import WORKLOADS
    from trial_package.slower import slower

    step = slower(WORKLOADS[workload](), float(share))
    channel.send(READY)
    for _ in Program(Answering(channel)).steps():
        step()


if __name__ == "__main__":
    main(*sys.argv[1:])
