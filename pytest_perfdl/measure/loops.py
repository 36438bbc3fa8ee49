"""What a pass runs: how many calls of its function make one measured step, and the generator of its steps."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

from pytest_perfdl.machine.state import NO_USAGE, Usage
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import LoopCount

# How many calls of its function make one measured step: a step shorter than the clock and the loop can time well.
#
# Steps are looped only while a test warms up and is timed, and their times are divided by the number again. The
# profiler and the counters see one call at a time, so traces and counts are those of a call.


LEAST_STEP_NS = 100_000
"""A shorter step has loops suggested, and `auto` makes steps at least so long."""
MOST_LOOPS = 2**20


class Loops:
    """How many calls make a step of each `perf(...)` call of a test, the same in all its processes.

    Parameters
    ----------
    wanted
        What the marker or the ini file says.
    by_marker
        Whether the marker says it: what cannot be looped is then refused, and otherwise left at one call.
    """

    def __init__(self, wanted: LoopCount = 1, *, by_marker: bool = False) -> None:
        self._wanted = wanted
        self._by_marker = by_marker
        self._calibrated: dict[str, int] = {}

    def reuse(self, stored: Mapping[str, int]) -> None:
        """Take over what was calibrated for the baseline, so that this run measures with the same plan."""
        self._calibrated = {**stored, **self._calibrated}

    def number(self, call: str, not_looped: str = "") -> int | None:
        """Calls in a step of a `perf(...)` call, by its name; `None` where that is still to be calibrated.

        Parameters
        ----------
        not_looped
            What several calls cannot be one step with; empty where they can.

        Raises
        ------
        PerfError
            The marker asks for loops where a step is no repeatable call.
        """
        if not_looped:
            if self._by_marker and self._wanted != 1:
                raise PerfError(
                    f"@pytest.mark.perf(loops={self._wanted!r}) calls the step several times in a row, which is not "
                    f"possible with {not_looped}: remove loops"
                )
            return 1
        return self._calibrated.get(call) if self._wanted == "auto" else self._wanted

    def calibrated(self, call: str, number: int) -> None:
        """Keep the number for all further processes."""
        self._calibrated[call] = number

    def planned(self, calls: Mapping[str, str]) -> dict[str, int]:
        """The numbers as a plan holds them: those that are not one, and all that were calibrated.

        `calls` maps the name of each to what it cannot be looped with.
        """
        numbers = {call: self.number(call, not_looped) or 1 for call, not_looped in calls.items()}
        calibrated = self._calibrated if self._wanted == "auto" else {}
        return {name: number for name, number in numbers.items() if number != 1 or name in calibrated}


# A pass over steps: a generator that yields whenever a step is to be run.
#
# It receives the time to exclude from that step, and returns its measurement.


@dataclass(frozen=True, slots=True)
class Aside:
    """What of a step's time is known apart, in nanoseconds."""

    wait_ns: int = 0
    """Waiting for data: part of the step."""
    setup: Usage = NO_USAGE
    """What preparing the step used up: not part of it."""


NOTHING = Aside()
Steps = Generator[bool, "Aside | None", None]
"""Yields once a step; the flag says whether the step's result is still wanted afterwards."""


@contextlib.contextmanager
def annotated(name: str, wanted: bool) -> Iterator[None]:
    """A range in the profile around the block, where the profiler is on."""
    if not wanted:
        yield
        return
    from torch.profiler import record_function

    with record_function(name):
        yield
