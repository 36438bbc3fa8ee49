"""What a worker answered, made from a few numbers."""

from dataclasses import replace

from pytest_perfdl.measure.commands import (
    Block,
    CallInfo,
    CallResult,
    Compiled,
    Counted,
    Finish,
    Profiled,
    Settled,
    Timed,
)
from pytest_perfdl.model.record import Key, ProfiledRow

KEY = Key("cpu-1t", {"cpu": "CPU", "threads": 1})


class Conversation:
    """Gives commands and keeps the answers."""

    def __init__(self, *commands):
        self.commands = [*commands, Finish()]
        self.answers = []

    def command(self):
        return self.commands.pop(0)

    def answer(self, reply):
        self.answers.append(reply)


def info(**rest):
    values = {"name": "", "kind": "function", "period": 1, "items": None, "key": KEY, "context": {"torch": "2.13"}}
    return CallInfo(**{**values, **rest})


def timed(*steps, blocks=1, **rest):
    """Steps in blocks of equal size, whose time is the sum of their steps'."""
    size = len(steps) // blocks
    delays = rest.get("delay_ns") or (0,) * len(steps)
    made = [
        Block(
            steps=size,
            wall_ns=sum(steps[start : start + size]),
            cpu_ns=rest.pop("cpu_ns", 10 * size),
            system_ns=rest.pop("system_ns", 0),
            run_delay_ns=sum(delays[start : start + size]),
            minor_faults=rest.pop("minor_faults", 0),
        )
        for start in range(0, len(steps), size)
    ]
    values = {"wait_ns": (), "delay_ns": (), "compiles": (), "load": None, "tracer": ""}
    return Timed(step_ns=steps, blocks=tuple(made), **{**values, **rest})


def profiled(*rows, steps=(100, 100), **rest):
    """Rows are (name, count, ns) over all profiled steps."""
    values = {
        "counts": {"ops": (5, 5)},
        "device_busy_ns": None,
        "signatures": ("a", "a"),
        "findings": (),
        "exemplar": None,
    }
    made = tuple(ProfiledRow("operator", name, count, ns) for name, count, ns in rows)
    return Profiled(step_ns=steps, rows=made, **{**values, **rest})


COUNTED = Counted(
    {"flops": 12.0, "allocations": 3.0, "alloc_bytes": 64.0, "peak_memory": 96.0, "static_memory": 32.0}, uncounted=()
)


def without(counted, name):
    """An answer in which one metric could not be counted."""
    return replace(counted, counts={key: count for key, count in counted.counts.items() if key != name})


def result(*steps, **rest):
    """The result of one call in one repeat; parts are given by their names, others are unremarkable."""
    parts = {
        "info": info(),
        "settled": Settled(15, settled=True, spread=0.01),
        "timed": timed(*(steps or (100, 100, 100, 100))),
        "profiled": profiled(),
        "counted": COUNTED,
        "compiled": Compiled(used=False, compile_ns=0, recompiles=0, graph_breaks=0),
    }
    return CallResult(**{**parts, **rest})


def named(name, call):
    return replace(call, info=replace(call.info, name=name))
