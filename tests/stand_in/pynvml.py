"""A stand-in for nvidia-ml-py, which tells of the devices that `stand_in_gpu` simulates.

Processes are those with a context in the shared folder, and those whose ids are in its file `others`. Counters of
violations grow by what kernels of all processes took while their clock was reduced.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

NVML_PERF_POLICY_POWER = 0
NVML_PERF_POLICY_THERMAL = 1
NVML_PERF_POLICY_SYNC_BOOST = 2
NVML_PERF_POLICY_BOARD_LIMIT = 3
NVML_PERF_POLICY_RELIABILITY = 5


class NVMLError(Exception):
    pass


def _setup():
    return json.loads(os.environ.get("STAND_IN_GPU", "{}"))


def _folder():
    return Path(_setup().get("folder") or "/nonexistent")


def nvmlInit():  # noqa: N802
    if "STAND_IN_GPU" not in os.environ:
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount():  # noqa: N802
    return len(_setup().get("cards", [{}]))


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    return index


def nvmlDeviceGetHandleByPciBusId(pciBusId):  # noqa: N802, N803
    return 0


def nvmlDeviceGetViolationStatus(device, perfPolicyType):  # noqa: N802, N803
    if perfPolicyType != NVML_PERF_POLICY_THERMAL:
        raise NVMLError("Not Supported")
    taken = sum(int(path.read_text() or 0) for path in _folder().glob("reduced-*"))
    return SimpleNamespace(referenceTime=0, violationTime=taken)


def nvmlDeviceGetCurrentClocksEventReasons(handle):  # noqa: N802
    return int(_setup().get("reasons", 0))


def nvmlDeviceGetComputeRunningProcesses(handle):  # noqa: N802
    ids = [int(path.name.partition("-")[2]) for path in _folder().glob("context-*")]
    others = _folder() / "others"
    ids += map(int, others.read_text().split()) if others.exists() else ()
    return [SimpleNamespace(pid=pid, usedGpuMemory=0) for pid in ids if Path(f"/proc/{pid}").exists()]


def nvmlDeviceGetMigMode(handle):  # noqa: N802
    raise NVMLError("Not Supported")
