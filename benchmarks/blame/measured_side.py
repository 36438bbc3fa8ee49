"""The process that `measuring.py` measures: one model, its steps run by the plugin's own fixture and commands.

    BLAME_PLANT=NAME python measured_side.py MODEL DESCRIPTOR

The call and the answers to commands (`pytest_perfdl.measure.commands`) go over the inherited socket DESCRIPTOR.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE / "scratch" / "src")]

from pytest_perfdl.fixture import Measured
from pytest_perfdl.measure.environment import prepare
from pytest_perfdl.model.record import MeasurementPlan
from pytest_perfdl.workers.channel import Channel

PLAN = MeasurementPlan(warmup=15, steps=40)
"""What the plugin measures where nothing else is asked for."""


class Asked:
    """Who asks for measurements (`pytest_perfdl.fixture.Host`): the process at the other end."""

    plan = PLAN
    key_extra: tuple[str, ...] = ()
    side = ""
    inject = 0.0
    cold = False

    def __init__(self, channel: Channel) -> None:
        self.start_call = self.answer = channel.send
        self.command = channel.receive

    def show(self, *_: object, **__: object) -> None:
        """Of no use: processes are started here."""

    def expect(self, *_: object) -> NoReturn:
        raise NotImplementedError

    send_metric = expect


def main(model: str, descriptor: str) -> None:
    """Serve commands until told to finish."""
    prepare(PLAN)
    from blamed.workloads import WORKLOADS

    perf = Measured(Asked(Channel(socket.socket(fileno=int(descriptor)))))
    WORKLOADS[model](perf)
    perf.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
