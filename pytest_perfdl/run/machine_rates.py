"""Peak rates of this machine, to which utilization is relative: one committed file per machine ID, measured once.

`baselines/<machine ID>/machine.json` is used for all tests with that ID, and for both sides of a comparison. A run that
records baselines measures a missing file in a separate process (`measure.calibration`).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.machine.fitness import MachineFinding
from pytest_perfdl.machine.processors import allowed, power, quota
from pytest_perfdl.machine.rates import FILE, Machine, Peaks
from pytest_perfdl.model.errors import BaselineError, ConstantsError
from pytest_perfdl.model.record import Key
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.system import processes
from pytest_perfdl.system.folders import for_a_while
from pytest_perfdl.system.import_path import module_command
from pytest_perfdl.workers.process import environment

_TIMEOUT_SECONDS = 120.0
_CHECK_SECONDS = 2.5
_MISSED = 0.1


class MachineRates:
    """The peak rates under the keys of a run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Machine | None] = {}
        self._refused: dict[str, str] = {}
        self._missed: dict[str, str] = {}

    def of(self, key: Key) -> Machine | None:
        """Those under a key; `None` where there are none.

        Raises
        ------
        ConstantsError
            When the file cannot be read.
        """
        if key.slug not in self._known:
            path = self.path(key)
            try:
                self._known[key.slug] = Machine.load(path) if path.exists() else None
            except ConstantsError as error:
                raise ConstantsError(
                    f"{error}: restore the file from git, or delete the file and run pytest --perf-update"
                ) from None
        return self._known[key.slug]

    def peaks(self, keys: Iterable[Key]) -> dict[str, Peaks]:
        """Those of some keys that have a file that can be read, by name."""
        found = {}
        for key in keys:
            with contextlib.suppress(ConstantsError):
                machine = self.of(key)
                if machine is not None and machine.peaks is not None:
                    found[key.slug] = machine.peaks
        return found

    def path(self, key: Key) -> Path:
        """Where they are or would be."""
        return self._store.key_folder(key.slug) / FILE

    def measure(self, key: Key, key_extra: Sequence[str] = ()) -> str:
        """Measure and write them where there are none; why that was not possible, in one line, or an empty text."""
        if self.of(key) is not None:
            return ""
        if key.slug not in self._refused:
            try:
                found = calibrated(int(key.parts.get("threads") or 1), has_device(key), key_extra)
                if not found.key.startswith(f"{key.slug} "):
                    raise ConstantsError(
                        f"the machine ID in the worker process differs from this process's machine ID: {found.key}"
                    )
                self._store.write(self.path(key), found.dump())
                self._known[key.slug] = found
            except (BaselineError, ConstantsError) as error:
                self._refused[key.slug] = str(error)
        return self._refused.get(key.slug, "")

    def missed(self, key: Key, key_extra: Sequence[str] = ()) -> str:
        """What of the peak rates the machine does not reach now, in one line; empty where it does; once a run."""
        if key.slug not in self._missed:
            kept = self.of(key)
            try:
                threads = int(key.parts.get("threads") or 1)
                now = calibrated(threads, has_device(key), key_extra, seconds=_CHECK_SECONDS)
                below = [] if kept is None else _below(kept, now)
                said = f"the machine does not reach its recorded peak rates: {'; '.join(below)}" if below else ""
            except ConstantsError as error:
                said = f"the peak rates of the machine could not be measured again: {error}"
            self._missed[key.slug] = said
        return self._missed[key.slug]


def location(store: Store, key: str) -> Path:
    """The file of what is measured under a key and a version of torch (`Machine.key`), among a project's baselines."""
    return store.key_folder(key.partition(" ")[0]) / FILE


def has_device(key: Key) -> bool:
    """Whether steps under a key run on a device."""
    return bool(key.parts.get("accelerators"))


def reached(store: Store, threads: int = 1) -> list[MachineFinding]:
    """Whether this machine still reaches the peak rates that are kept of it; nothing where none are.

    Each is measured again, for a quarter of the time. Missed is one below nine tenths, or by three times its spread.
    """
    if not any(store.base.glob(f"*/{FILE}")):
        return []
    # Imported here: it loads torch.
    from pytest_perfdl.measure.calibration import prepare

    path = location(store, prepare(threads))
    if not path.exists():
        return []
    try:
        kept = Machine.load(path)
        now = calibrated(threads, on_device=False, seconds=_CHECK_SECONDS)
    except ConstantsError as error:
        return [MachineFinding("note", "limits", f"the peak rates could not be compared with {FILE}", str(error))]
    if not (missed := _below(kept, now)):
        return [MachineFinding("ok", "limits", f"the machine reaches the peak rates in {FILE} (recorded {kept.date})")]
    why = "utilization is relative to peak rates that the machine does not reach now"
    do = "find the cause; if the change is permanent, run perfdl constants --again"
    return [MachineFinding("warn", "limits", "; ".join(missed), why, do)]


def _below(kept: Machine, now: Machine) -> list[str]:
    """Peak rates that are missed by more than a tenth, and by more than three times their spread."""
    return [
        f"{name} is {format_quantity(found, unit)} (recorded: {format_quantity(before, unit)})"
        for name, unit, spread, before, found in _pair_rates(kept, now)
        if found < (1 - max(_MISSED, 3 * spread)) * before
    ]


def _pair_rates(kept: Machine, now: Machine) -> Iterator[tuple[str, str, float, float, float]]:
    """Each limit with its unit and its spread, as it is kept and as it is now."""
    for name, rate in kept.flops_per_s.items():
        yield name, "flop/s", kept.spread.get(name, 0.0), rate, now.flops_per_s.get(name, 0.0)
    found = dict(now.bandwidths)
    for size, rate in kept.bandwidths:
        if size in found:
            name = f"memory bandwidth for {format_quantity(size, 'B')}"
            yield name, "B/s", kept.spread.get(str(size), 0.0), rate, found[size]


def calibrated(
    threads: int, on_device: bool, key_extra: Sequence[str] = (), *, seconds: float | None = None
) -> Machine:
    """The machine's peak rates, measured now by a process with the environment of workers.

    `seconds` are those of the repeats; by default as many as for rates that are kept.

    Raises
    ------
    ConstantsError
        The rates of this machine are not stable, or other processes disturbed it; the message is one line.
    """
    if why := unfit():
        raise ConstantsError(why)
    with for_a_while("calibration") as folder:
        file = folder / FILE
        options = [str(threads), "device" if on_device else "cpu", str(file), str(seconds or 0), *key_extra]
        command = module_command(sys.executable, "pytest_perfdl.measure.calibration", *options)
        try:
            # What it starts computes until it is killed, so that must not outlive this process.
            done = processes.run(command, folder, seconds=_TIMEOUT_SECONDS, environment=environment(threads))
        except subprocess.TimeoutExpired:
            raise ConstantsError(
                f"the benchmark of this machine did not finish within {_TIMEOUT_SECONDS:g} s"
            ) from None
        if done.code:
            said = done.errors.decode(errors="replace").strip().splitlines() or [
                f"the benchmark of this machine failed with exit code {done.code}"
            ]
            raise ConstantsError(said[-1])
        return Machine.load(file)


def unfit(root: Path = Path("/")) -> str:
    """Why the rates of this machine are not stable, in one line; empty if they are."""
    for finding in (*quota(root, len(allowed())), *power(root)):
        if finding.level in ("bad", "warn"):
            return f"{finding.found}: {finding.why}"
    return ""
