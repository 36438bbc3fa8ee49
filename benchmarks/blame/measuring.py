"""Measures both sides of a comparison without pytest: rounds of two fresh processes that take turns, and stack passes.

All but the test around the steps is the plugin's: its fixture, its commands (`measure.commands.one_side`), its pinned
environment. What is measured is kept, round by round, so that blame can be asked again without measuring again.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

from measured_side import PLAN
from scoring import UNCHANGED, ComparingError, Task
from suite import PLANTS

from pytest_perfdl.judge.round_data import Order, Round, orders
from pytest_perfdl.measure.commands import CallInfo, explanation, one_side
from pytest_perfdl.model.errors import ChannelClosed, ChannelTimeout
from pytest_perfdl.run.assemble import side_parts, side_values
from pytest_perfdl.workers.channel import pair
from pytest_perfdl.workers.process import environment

if TYPE_CHECKING:
    from pytest_perfdl.analysis.account.parts import StepParts

TIMEOUT_SECONDS = 120.0

Script = Generator[Any, Any, Any]


@dataclass(frozen=True)
class Measured:
    """What was measured for a task so far."""

    task: Task
    rounds: tuple[Round, ...] = ()
    stacks: Mapping[str, Mapping[str, StepParts]] = field(default_factory=dict)
    """By side ("base", "head"), then by call."""
    wanted_line: str = ""
    """The line that is to be named, where Python is to blame: sources may change later."""
    seconds: float = 0.0


def measure(task: Task, rounds: int, folder: Path) -> Measured:
    """Measure what is missing of so many rounds and of a stack pass on each side; each is kept as soon as it ends.

    Raises
    ------
    ComparingError
        When a measured process dies or hangs.
    """
    found = kept(task, folder) or Measured(task, wanted_line=PLANTS[task.plant].line if task.plant else "")
    drawn = orders(zlib.crc32(str(task).encode()), rounds)
    with tempfile.TemporaryDirectory(prefix="perfdl-blame-") as scratch:
        for order in drawn[len(found.rounds) :]:
            started = time.monotonic()
            found = replace(found, rounds=(*found.rounds, _round(task, order, scratch)))
            found = _keep(found, started, folder)
        for side, plant in (("base", UNCHANGED), ("head", task.plant)):
            if side not in found.stacks:
                started = time.monotonic()
                found = replace(found, stacks={**found.stacks, side: _stacks(task, plant, scratch)})
                found = _keep(found, started, folder)
    return found


def kept(task: Task, folder: Path) -> Measured | None:
    """What was measured before; `None` if nothing was."""
    path = _path(task, folder)
    if not path.exists():
        return None
    found: Measured = pickle.loads(path.read_bytes())
    return found


def _keep(found: Measured, started: float, folder: Path) -> Measured:
    found = replace(found, seconds=found.seconds + time.monotonic() - started)
    path = _path(found.task, folder)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(found))
    unfinished.replace(path)
    return found


def _path(task: Task, folder: Path) -> Path:
    return folder / f"{task.plant or f'unchanged-{task.model}'}-{task.number}.pickle"


class _Process:
    """A measured process and the script that it is taken through, turn by turn."""

    def __init__(self, task: Task, plant: str, script: Callable[[CallInfo, str], Script], scratch: str) -> None:
        self._title = f"{task}, {plant or 'unchanged'} side"
        self._make = script
        self._scratch = scratch
        self._script: Script | None = None
        self.result: Any = None
        self._channel, theirs = pair()
        command = [sys.executable, str(HERE / "measured_side.py"), task.model, str(theirs.fileno())]
        with theirs:
            # A group of its own, like the plugin's workers: what others did is told from what the group did.
            self._process = subprocess.Popen(
                command,
                env={**environment(PLAN.threads), "BLAME_PLANT": plant, "PYTHONDONTWRITEBYTECODE": "1"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def turn(self) -> bool:
        """Go on to where the other has its turn; false once it is over."""
        if self._script is None:
            self._script = self._make(self._receive(), self._scratch)
        reply = None
        while True:
            try:
                command = self._script.send(reply)
            except StopIteration as stop:
                self.result = stop.value
                return False
            if command is None:
                return True
            with contextlib.suppress(ChannelClosed):
                self._channel.send(command)
            reply = self._receive()

    def _receive(self) -> Any:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        try:
            return self._channel.receive(alive=lambda: self._process.poll() is None, deadline=deadline)
        except (ChannelClosed, ChannelTimeout) as error:
            code = self._process.poll()
            how = "does not answer" if code is None else f"ended with exit status {code}"
            raise ComparingError(f"{self._title}: the measured process {how}") from error

    def close(self) -> None:
        """End now."""
        self._process.kill()
        self._process.wait()
        self._channel.close()


@contextlib.contextmanager
def _processes(
    task: Task, plants: Mapping[str, str], script: Callable[[CallInfo, str], Script], scratch: str
) -> Iterator[dict[str, _Process]]:
    """One for each side, which are gone afterwards, whatever happens."""
    with contextlib.ExitStack() as all_of_them:
        found = {}
        for side, plant in plants.items():
            found[side] = _Process(task, plant, script, scratch)
            all_of_them.callback(found[side].close)
        yield found


def _round(task: Task, order: Order, scratch: str) -> Round:
    def script(info: CallInfo, folder: str) -> Script:
        return one_side(PLAN, info, folder, profiled=True)

    plants = {"base": UNCHANGED, "head": task.plant}
    names = ("base", "head") if order == "base first" else ("head", "base")
    with _processes(task, {name: plants[name] for name in names}, script, scratch) as sides:
        waiting = list(sides.values())
        while waiting:
            waiting = [side for side in waiting if side.turn()]
        base, head = ([sides[name].result] for name in ("base", "head"))
    return Round(
        order=order,
        base=side_values(base),
        head=side_values(head),
        parts_base=side_parts(base),
        parts_head=side_parts(head),
    )


def _stacks(task: Task, plant: str, scratch: str) -> dict[str, StepParts]:
    """The parts of one side's steps with their lines: the stack pass."""

    def script(info: CallInfo, folder: str) -> Script:
        return explanation(PLAN, info, folder)

    with _processes(task, {"only": plant}, script, scratch) as sides:
        while sides["only"].turn():
            pass
        result = sides["only"].result
    return {result.call: result.parts}
