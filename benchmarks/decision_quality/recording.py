"""What `record.py` writes and `replay.py` reads: processes with every step of them, and rounds.

Runs are kept one JSON line each while they are made, and packed into one gzip file with a fixed header, so that
the same runs give the same bytes. Durations are integer nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.kept import keep, read

from pytest_perfdl.judge.round_data import Order, Start
from pytest_perfdl.machine.state import Load
from pytest_perfdl.measure.commands import Block, CallInfo, Compiled, Settled, SideResult, Timed
from pytest_perfdl.model.record import Key
from pytest_perfdl.run.assemble import side_values

Steps = NDArray[np.int64]

PLUGIN_STEPS = 40
"""What the plugin times in a repeat: it sees that many, however many are recorded."""
RUN_SECONDS = 3600.0
"""Longest that one run of pytest may measure rounds."""
_INFO = CallInfo("", "function", 1, None, Key("recorded", {"threads": 1}), {})


@dataclass(frozen=True)
class Measured:
    """The timed steps of one process."""

    warmup: int
    """Steps before the timed ones."""
    step_ns: tuple[int, ...]
    delay_ns: tuple[int, ...]
    """Of each step, how long others had the processor."""
    blocks: tuple[tuple[int, ...], ...]
    """The fields of `commands.Block`, in their order."""
    other_load: float | None

    @classmethod
    def of(cls, warmup: int, parts: Sequence[Timed]) -> Measured:
        """Join what one process answered to several commands to time."""
        load = Load.joined([part.load for part in parts])
        return cls(
            warmup,
            tuple(ns for part in parts for ns in part.step_ns),
            tuple(ns for part in parts for ns in part.delay_ns),
            tuple(tuple(asdict(block).values()) for part in parts for block in part.blocks),
            load.others if load is not None and load.is_telling else None,
        )

    @property
    def steps(self) -> Steps:
        """Step times."""
        return np.array(self.step_ns, np.int64)

    def metrics(self) -> dict[str, float]:
        """`step_time`, `block_time` and the others as the plugin takes them from its first `PLUGIN_STEPS` steps."""
        blocks, count = [], 0
        for block in self.blocks:
            if count < PLUGIN_STEPS:
                blocks.append(Block(*block))
                count += blocks[-1].steps
        timed = Timed(
            step_ns=self.step_ns[:count],
            wait_ns=(),
            delay_ns=self.delay_ns[:count],
            blocks=tuple(blocks),
            compiles=(),
            load=None if self.other_load is None else Load(1.0, self.other_load, 0.0),
            tracer="",
        )
        settled = Settled(self.warmup, settled=True, spread=0.0)
        compiled = Compiled(used=False, compile_ns=0, recompiles=0, graph_breaks=0)
        return side_values([SideResult(_INFO, settled, timed, compiled)])


@dataclass(frozen=True)
class Process:
    """One process by itself."""

    workload: str
    share: float
    """By how much its steps were slowed."""
    number: int
    at: float
    """When it was started, seconds since 1970."""
    start_seconds: float
    """From starting the process until its first step could run."""
    seconds: float
    """From starting it to its end."""
    measured: Measured


@dataclass(frozen=True, order=True)
class Cell:
    """Under what rounds are measured, as it was asked for; what became of that is in each round."""

    start: Start
    pinned: bool
    neighbor: float
    """Share of a processor that another program uses; 0 for none."""

    def __str__(self) -> str:
        beside = f"neighbor {self.neighbor:.0%}" if self.neighbor else "quiet"
        return f"{self.start}, {'pinned' if self.pinned else 'free'}, {beside}"


@dataclass(frozen=True)
class Round:
    """Two processes that took turns; the head's steps were slowed."""

    workload: str
    share: float
    number: int
    at: float
    order: Order
    """Drawn by lot."""
    seconds: float
    base: Mapping[str, int]
    """The times that have a limit."""
    head: Mapping[str, int]
    cell: Cell
    start: Start
    """How its processes began."""
    core: int | None
    """The processor that both were bound to."""
    other_load: float | None
    """Processors that others kept busy during the timed steps, of those that these might use; `None` if not known."""
    idle_load: float | None
    """The same of the whole machine shortly before, when nothing of the measurement ran."""


@dataclass(frozen=True)
class First:
    """What the first process of each side took, which counts and profiles, before any round of a test."""

    workload: str
    number: int
    at: float
    base_seconds: float
    head_seconds: float


Run = Process | Round | First
_KINDS: Mapping[str, type[Run]] = {"process": Process, "round": Round, "first": First}


def to_json(run: Run) -> dict[str, Any]:
    """Plain data."""
    return {"kind": type(run).__name__.lower(), **asdict(run)}


def from_json(data: Mapping[str, Any]) -> Run:
    """The run again."""
    kind = _KINDS[data["kind"]]
    known: dict[str, Any] = {field.name: data[field.name] for field in fields(kind)}
    if kind is Process:
        known["measured"] = _measured(known["measured"])
    elif kind is Round:
        known["cell"] = Cell(**known["cell"])
    return kind(**known)


def _measured(data: Mapping[str, Any]) -> Measured:
    blocks = tuple(tuple(block) for block in data["blocks"])
    steps, delays = tuple(data["step_ns"]), tuple(data["delay_ns"])
    return Measured(data["warmup"], steps, delays, blocks, data["other_load"])


def read_lines(path: Path) -> list[Run]:
    """Runs kept so far, in the order in which they were made."""
    return [from_json(data) for data in read(path)]


def append_line(path: Path, run: Run) -> None:
    """Keep one run."""
    keep(path, to_json(run))


def pack(runs: Iterable[Run], machine: Mapping[str, Any], path: Path) -> int:
    """Write all runs into one file; returns its size in bytes."""
    ordered = sorted(runs, key=lambda run: run.at)
    text = json.dumps({"machine": dict(machine), "runs": [to_json(run) for run in ordered]}, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode("ascii"), 9, mtime=0))
    return path.stat().st_size


def unpack(path: Path) -> tuple[dict[str, Any], list[Run]]:
    """The machine and the runs of a packed file, or of the lines kept so far."""
    if path.suffix == ".jsonl":
        return {}, read_lines(path)
    data = json.loads(gzip.decompress(path.read_bytes()))
    return data["machine"], [from_json(run) for run in data["runs"]]
