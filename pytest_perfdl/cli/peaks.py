"""`--peaks`: peak rates of the hardware, from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.model.errors import CommandError

if TYPE_CHECKING:
    from pytest_perfdl.machine.rates import Peaks


def add_peaks(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--peaks",
        metavar="NAME=RATE",
        action="append",
        default=[],
        help="peak rates of the hardware per second, such as float32=67Tflop and bandwidth=3.35TB, or a machine.json "
        "file of `perfdl constants`; used for the roofline (default: built-in rates for the device of the trace)",
    )


def parse_peaks(texts: Sequence[str]) -> Peaks | None:
    """The peaks that the option was given; `None` without it.

    Raises
    ------
    CommandError
        When they cannot be read, or say nothing of the memory.
    """
    from pytest_perfdl.machine.rates import ELEMENT_TYPES, Peaks
    from pytest_perfdl.model.units import parse_quantity

    if not texts:
        return None
    if len(texts) == 1 and texts[0].endswith(".json"):
        return _measured_peaks(Path(texts[0]))
    flops: dict[str, float] = {}
    bandwidth = None
    for text in texts:
        name, _, value = text.partition("=")
        try:
            if name != "bandwidth" and name not in ELEMENT_TYPES:
                raise ValueError(
                    f"{text!r} is not NAME=RATE, where NAME is one of bandwidth, {', '.join(ELEMENT_TYPES)}"
                )
            rate = parse_quantity(value, "B" if name == "bandwidth" else "flop")
            if rate <= 0:
                raise ValueError(f"{text!r} must be above 0")
            if name == "bandwidth":
                bandwidth = rate
            else:
                flops[name] = rate
        except ValueError as error:
            raise CommandError(f"--peaks {error}: write float32=67Tflop or bandwidth=3.35TB (per second)") from error
    if bandwidth is None:
        raise CommandError("--peaks also needs the memory bandwidth: add bandwidth=3.35TB (bytes per second)")
    return Peaks(flops, bandwidth)


def _measured_peaks(path: Path) -> Peaks:
    """The peak rates of a machine that a project keeps."""
    from pytest_perfdl.machine.rates import Machine

    peaks = Machine.load(path).peaks
    if peaks is None:
        raise CommandError(f"{path} contains no peak rates: run `perfdl constants` to measure peak rates")
    return peaks
