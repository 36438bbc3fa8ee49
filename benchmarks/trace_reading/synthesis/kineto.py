"""Rows and files as kineto writes them (torch 2.5 to 2.11): the same keys, order, spaces and line ends.

A file has its rows by kind: operators with annotations, memory, Python frames, the device with its runtime. Rows come
step by step, so each kind is kept in a temporary file until the end; memory does not grow with the trace.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from typing import IO

from synthesis.nodes import Input, Kernel, Tensor

SECTIONS = ("operators", "memory", "outer", "python", "device")
SMS, WARP = 132, 32
BASE_NS = 1_751_410_836_000_000_000
HOST, DEVICE = 19392, 0


def us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def complete(category: str, name: str, pid: int, tid: int, start: int, duration: int, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {us(start)}, "dur": {us(duration)},\n    "args": {{\n      {args}\n    }}\n  }},\n'
    )


def flow(phase: str, name: str, number: int, pid: int, tid: int, ns: int) -> str:
    end = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": {us(ns)},\n'
        f'    "cat": "{name}", "name": "{name}"{end}\n  }},\n'
    )


def memory(tid: int, ns: int, args: str) -> str:
    return (
        f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
        f'    "pid": {HOST}, "tid": {tid},\n    "ts": {us(ns)},\n    "args": {{\n      {args}\n    }}\n  }},\n'
    )


@lru_cache(maxsize=4096)
def inputs(values: tuple[Input, ...]) -> str:
    """The arguments that `record_shapes` adds, with the comma behind them."""
    if not values:
        return ""
    types = [value.dtype if isinstance(value, Tensor) else _scalar(value) for value in values]
    shapes = [list(value.shape) if isinstance(value, Tensor) else [] for value in values]
    return f'"Input type": {json.dumps(types)}, "Input Dims": {shapes}, '


def _scalar(text: str) -> str:
    if not text:
        return ""
    return "ScalarList" if text.startswith("[") else "Scalar"


@lru_cache(maxsize=4096)
def kernel_args(kernel: Kernel, stream: int) -> tuple[str, str]:
    """Text before and after the correlation."""
    blocks = kernel.grid[0] * kernel.grid[1] * kernel.grid[2] / SMS
    warps = blocks * kernel.block[0] * kernel.block[1] * kernel.block[2] / WARP
    before = f'"queued": 0, "device": 0, "context": 1,      "stream": {stream}, "correlation": '
    after = (
        f',      "registers per thread": {kernel.registers},      "shared memory": {kernel.shared},      '
        f'"blocks per SM": {blocks:.7g},      "warps per SM": {warps:.7g},      "grid": {list(kernel.grid)},      '
        f'"block": {list(kernel.block)},      "est. achieved occupancy %": {kernel.occupancy}'
    )
    return before, after + (f",      {kernel.extra}" if kernel.extra else "")


def metadata(name: str, pid: int | str, tid: int, start: int, key: str, value: int | str) -> str:
    return (
        f'  {{\n    "name": "{name}", "ph": "M", "ts": {us(start)}, "pid": {json.dumps(pid)}, "tid": {tid},\n'
        f'    "args": {{\n      "{key}": {json.dumps(value)}\n    }}\n  }},\n'
    )


class Spool:
    """The rows of a trace by section, in temporary files."""

    def __init__(self) -> None:
        self._files: dict[str, IO[bytes]] = {name: tempfile.TemporaryFile() for name in SECTIONS}  # noqa: SIM115
        self.rows = 0

    def add(self, section: str, rows: Iterable[str]) -> None:
        """Rows for the end of a section; one text may hold several."""
        text = "".join(rows)
        self.rows += text.count('"ph": "')
        self._files[section].write(text.encode())

    def write(self, file: IO[bytes], ranks: int, threads: dict[int, str], streams: Iterable[int], ends: int) -> int:
        """The whole trace into a binary file; the number of its events."""
        file.write(_head(ranks).encode())
        for name in SECTIONS:
            spooled = self._files[name]
            spooled.seek(0)
            shutil.copyfileobj(spooled, file, 1 << 20)
            spooled.close()
        tail = _tail(ranks, threads, streams, ends)
        file.write(tail.encode())
        return self.rows + tail.count('"ph": "')


def _head(ranks: int) -> str:
    device = (
        '    {{\n      "id": {}, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936,\n'
        '      "computeMajor": 9, "computeMinor": 0,\n'
        '      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,\n'
        '      "regsPerBlock": 65536, "warpSize": 32,\n'
        '      "sharedMemPerBlock": 49152, "numSms": 132\n'
        '    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472\n'
        "    }}"
    )
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": ranks}
    distributed = {"backend": "nccl", "rank": 0, "world_size": ranks, "pg_count": 1}
    distributed |= {"pg_config": [{**group, "ranks": list(range(ranks))}], "nccl_version": "2.25.1"}
    return (
        '\n{\n  "schemaVersion": 1,\n  "deviceProperties": [\n'
        + ",\n".join(device.format(number) for number in range(ranks))
        + '\n  ],\n  "cupti_version": 26,\n  "cuda_runtime_version": 12080,\n  "with_modules": 1,\n'
        f'  "distributedInfo": {json.dumps(distributed)},\n'
        '  "record_shapes": 1,\n  "cuda_driver_version": 12090,\n  "profile_memory": 1,\n  "with_stack": 1,\n'
        '  "trace_id": "5A1B06C2D7F94E0F8C3E2B1A99D04E77",\n  "displayTimeUnit": "ms",\n'
        f'  "baseTimeNanoseconds": {BASE_NS},\n  "traceEvents": [\n'
    )


def _tail(ranks: int, threads: dict[int, str], streams: Iterable[int], ends: int) -> str:
    start = START_NS
    rows = [
        complete("overhead", "Activity Buffer Request", -1, 0, start + 11_480, 1_480_211, '"Event": ""'),
        metadata("process_name", HOST, 0, start, "name", "python3"),
        metadata("process_labels", HOST, 0, start, "labels", "CPU"),
        metadata("process_sort_index", HOST, 0, start, "sort_index", HOST),
    ]
    for device in range(ranks):
        rows.append(metadata("process_name", device, 0, start, "name", "python3"))
        rows.append(metadata("process_labels", device, 0, start, "labels", f"GPU {device}"))
        rows.append(metadata("process_sort_index", device, 0, start, "sort_index", 5_000_000 + device))
    for stream in streams:
        rows.append(metadata("thread_name", DEVICE, stream, start, "name", f"stream {stream} "))
        rows.append(metadata("thread_sort_index", DEVICE, stream, start, "sort_index", stream))
    for tid, name in threads.items():
        rows.append(metadata("thread_name", HOST, tid, start, "name", f"thread {tid} ({name})"))
        rows.append(metadata("thread_sort_index", HOST, tid, start, "sort_index", tid))
    span = (
        f'  {{\n    "ph": "X", "cat": "Trace", "ts": {us(start)}, "dur": {us(ends - start)},\n'
        '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
        '    "args": {\n      "Op count": 0\n    }\n  },\n'
    )
    begin = (
        '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
        f'    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {us(start)}\n  }},\n'
    )
    end = (
        '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
        f'    "pid": "", "tid": "", "ts": {us(ends + 250_000)}\n  }}\n'
    )
    sort = metadata("process_sort_index", "Spans", 0, start, "sort_index", 536_870_912)
    return "".join(rows) + span + sort + begin + end + '  ],\n  "traceName": "synthetic.pt.trace.json"\n}\n'


START_NS = 1_419_247_332_500_684
"""Where the window begins, relative to `BASE_NS`: some weeks, as in files of today."""
