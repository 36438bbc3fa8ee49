"""Which GPUs a run may use, found without importing torch and without opening a device.

A GPU is named by its address on the PCI bus, which is the same in all processes and containers of the machine. (The
driver does not report the UUID of a GPU that nobody has opened yet.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.system.device_lock import Wanted


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the driver says of a GPU."""

    bus: str
    """Address on the PCI bus: "0000:3b:00.0"."""
    model: str
    uuid: str


def wanted_locks(environment: Mapping[str, str], root: Path = Path("/")) -> list[Wanted]:
    """What a run must lock to measure in this environment.

    Runs on different GPUs share the host. A run without a GPU has the host for itself.
    """
    gpus = visible_gpus(environment, root)
    return [Wanted("host", shared=bool(gpus)), *(Wanted(f"gpu-{bus.replace(':', '-')}") for bus in gpus)]


def visible_gpus(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Addresses of the NVIDIA GPUs that processes with this environment may use, in ascending order.

    All GPUs, if CUDA_VISIBLE_DEVICES is not set, or has an entry whose GPU is not known here: a slice of a GPU (MIG),
    or an index where GPUs of different models are not ordered by their addresses.

    Parameters
    ----------
    root
        Folder that has `proc`.
    """
    gpus = _gpus(root)
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return tuple(gpu.bus for gpu in gpus)
    by_address = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.model for gpu in gpus}) == 1
    found = set()
    for entry in filter(None, map(str.strip, given.split(","))):
        if re.fullmatch(r"-?\d+", entry) and not 0 <= int(entry) < len(gpus):
            # CUDA ignores an index without a GPU, and everything after it.
            break
        if entry.isdecimal():
            matching = [gpus[int(entry)]] if by_address else []
        else:
            matching = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        if len(matching) != 1:
            return tuple(gpu.bus for gpu in gpus)
        found.add(matching[0].bus)
    return tuple(sorted(found))


def _gpus(root: Path) -> list[Gpu]:
    """All NVIDIA GPUs, in the order of their addresses."""
    found = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            text = ""
        said = dict(re.findall(r"(?m)^([^:\n]+):[ \t]*(.*?)[ \t]*$", text))
        found.append(Gpu(path.parent.name, said.get("Model", ""), said.get("GPU UUID", "")))
    return found
