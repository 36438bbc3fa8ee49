"""The process that `record.py` measures: one workload, its steps timed by the plugin's own commands.

    python measured.py WORKLOAD SHARE DESCRIPTOR

Commands and answers (`pytest_perfdl.measure.commands`) go over the inherited socket DESCRIPTOR; each step is
followed by a busy wait for SHARE of what it took, and that of the loader's worker by one for SHARE of its own.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE / "scratch" / "src")]

from pytest_perfdl.measure.commands import Reply
from pytest_perfdl.measure.environment import prepare
from pytest_perfdl.measure.program import Program
from pytest_perfdl.model.record import MeasurementPlan
from pytest_perfdl.workers.channel import Channel

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
    prepare(MeasurementPlan(warmup=15, steps=40))
    from trial_package import data, models, plant
    from trial_package.slower import slower

    if workload == "loader":
        # A wait of the step itself would be lost in the time for which it waits for data.
        plant.TRANSFORM = float(share)
        step = data.fed()
    else:
        step = slower(models.WORKLOADS[workload](), float(share))
    channel.send(READY)
    for _ in Program(Answering(channel)).steps():
        step()


if __name__ == "__main__":
    main(*sys.argv[1:])
