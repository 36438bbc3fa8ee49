"""Measure here what predictions need and no trace tells: rates, and how much faster operators are in another form.

`perfdl constants TRACE --form bfloat16 -o machine.json` replays the trace's operators in both forms in turns; then
`perfdl whatif TRACE --machine machine.json --apply amp`. What the file holds already is kept.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import one_run, say
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.units import format_quantity, plural

if TYPE_CHECKING:
    from pytest_perfdl.whatif.machine import Machine

_FORMS = ("bfloat16", "float16", "channels_last")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument("file", metavar="TRACE", type=Path, help="Chrome trace of the PyTorch profiler, with shapes")
    parser.add_argument(
        "--form",
        action="append",
        default=[],
        choices=_FORMS,
        help="replay operators in this form too: an element type for amp, or channels_last; several times for several",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="intra-op threads (1, as in perf tests)")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("machine.json"),
        metavar="FILE",
        help="where they are kept (machine.json)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing and write it; 2 when the trace or the file cannot be used."""
    if arguments.threads < 1:
        raise CommandError("--threads must be at least 1")
    if find_spec("torch") is None:
        raise CommandError("torch is not installed here: constants are measured with it")
    from pytest_perfdl.model.errors import TraceError
    from pytest_perfdl.trace import read
    from pytest_perfdl.whatif.calibration import measured
    from pytest_perfdl.whatif.machine import Machine

    try:
        known = Machine.load(arguments.out) if arguments.out.exists() else None
        trace = one_run(read(arguments.file))
        found = measured(trace, arguments.form, threads=arguments.threads, known=known, say=_progress)
    except (TraceError, ValueError) as error:
        raise CommandError(str(error)) from error
    try:
        found.save(arguments.out)
    except OSError as error:
        raise CommandError(f"{arguments.out} cannot be written: {error.strerror}") from error
    say(f"wrote {arguments.out}: {_summary(found)}")
    return 0


def _progress(done: int, count: int, text: str) -> None:
    say(f"[{done}/{count}] {text}", error=True)


def _summary(found: Machine) -> str:
    shown = [
        f"memory {format_quantity(found.memory_bytes_per_s, 'B')}/s" if found.memory_bytes_per_s else "",
        f"a process beside another takes {found.contention:.2f} times as long" if found.contention else "",
        f"a loader's batch {format_quantity(found.hand_over_ns, 'ns')}" if found.hand_over_ns else "",
        *(f"{plural(len(known), 'operator')} in {form}" for form, known in found.ratios.items()),
    ]
    return "; ".join(filter(None, shown))
