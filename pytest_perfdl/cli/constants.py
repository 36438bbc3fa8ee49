"""Measure the peak rates of this machine, and the constants that perfdl whatif needs.

Without a trace: FLOP/s by element type and memory bandwidth, into baselines/<machine ID>/machine.json, where tests find
them for utilization; --again measures those that the file has. `perfdl constants TRACE --form bfloat16 -o machine.json`
also replays the operators of the trace in another form, for `perfdl whatif TRACE --machine machine.json --apply amp`.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import one_run, say, shown
from pytest_perfdl.cli.project import add_dir, on_device, store
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.units import format_quantity, plural

if TYPE_CHECKING:
    from pytest_perfdl.machine.rates import Machine

_FORMS = ("bfloat16", "float16", "channels_last")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "file",
        metavar="TRACE",
        nargs="?",
        type=Path,
        help="Chrome trace of the PyTorch profiler, recorded with record_shapes=True",
    )
    add_dir(parser)
    parser.add_argument("--device", action="store_true", help="without a trace: benchmark the GPU instead of the CPU")
    parser.add_argument(
        "--again",
        action="store_true",
        help="measure the peak rates again, even if the output file already contains peak rates",
    )
    parser.add_argument(
        "--form",
        action="append",
        default=[],
        choices=_FORMS,
        help="also time the operators of the trace in another element type (such as bfloat16) or memory format "
        "(channels_last); repeatable",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="number of intra-op threads (default: %(default)s, as in perf tests)",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="output file (default: machine.json; without a trace: the machine.json of this machine in the baselines "
        "folder)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing and write it; 2 when the trace or the file cannot be used."""
    if arguments.threads < 1:
        raise CommandError("--threads must be at least 1")
    if find_spec("torch") is None:
        raise CommandError("torch is not installed: run pip install torch")

    if arguments.file is None:
        if arguments.form:
            raise CommandError("--form needs a trace: add a trace file to the command")
        return _measure_rates(arguments)
    from pytest_perfdl.trace import read
    from pytest_perfdl.whatif.measured_constants import measure_constants

    out = arguments.out or Path("machine.json")
    known = _load_known(out, again=arguments.again)
    trace = one_run(read(arguments.file))
    with on_device():
        found = measure_constants(trace, arguments.form, threads=arguments.threads, known=known, say=_progress)
    return _write(found, out)


def _measure_rates(arguments: argparse.Namespace) -> int:
    """Measure the peak rates alone, as a run that writes a first baseline does."""
    from pytest_perfdl.measure.calibration import place, prepare
    from pytest_perfdl.run.machine_rates import calibrated, location

    device = place(on_device=arguments.device)
    if not device:
        raise CommandError("torch finds no GPU: remove --device to benchmark the CPU")
    key = prepare(arguments.threads, device)
    stored = None if arguments.out else store(arguments)
    out = location(stored, key) if stored else arguments.out
    known = _load_known(out, again=arguments.again)
    if known.peaks is not None:
        raise CommandError(f"{shown(out)} already contains peak rates: add --again to measure the peak rates again")
    with on_device():
        say("benchmarking this machine (about 20 s)", error=True)
        found = calibrated(arguments.threads, arguments.device)
    if stored is None:
        return _write(found.or_else(known), out)
    stored.write(out, found.or_else(known).dump())
    say(f"wrote {shown(out)}: {_summary(found)}")
    return 0


def _load_known(path: Path, *, again: bool) -> Machine:
    """What a file holds, without its peak rates if they are measured again."""
    from pytest_perfdl.machine.rates import Machine

    if not path.exists():
        return Machine()
    known = Machine.load(path)
    return known.without_peaks() if again else known


def _write(found: Machine, out: Path) -> int:
    try:
        found.save(out)
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}") from error
    say(f"wrote {shown(out)}: {_summary(found)}")
    return 0


def _progress(done: int, count: int, text: str) -> None:
    say(f"[{done}/{count}] {text}" if count else f"perfdl constants: {text}", error=True)


def _summary(found: Machine) -> str:
    parts = [
        *(f"{name} {format_quantity(rate, 'flop/s')}" for name, rate in found.flops_per_s.items()),
        f"memory bandwidth {format_quantity(found.memory_bytes_per_s, 'B')}/s" if found.memory_bytes_per_s else "",
        f"two concurrent processes take {found.contention:.2f} times as long as one" if found.contention else "",
        f"a DataLoader worker hands over a batch in {format_quantity(found.hand_over_ns, 'ns')}"
        if found.hand_over_ns
        else "",
        *(f"{plural(len(known), 'operator')} in {form}" for form, known in found.ratios.items()),
    ]
    return "; ".join(filter(None, parts))
