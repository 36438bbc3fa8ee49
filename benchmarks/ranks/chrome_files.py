"""Write the events of ranks as the PyTorch profiler writes them: a Chrome trace a rank, in the clock of its host.

The formats are those of traces of torch 2.13 with gloo and of torch 2.0 with NCCL: see README.md.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from job_rank import Event
from job_spec import Spec

EPOCH_NS = 1_790_857_026_000_000_000
"""`baseTimeNanoseconds`: the begin of a span of three months, the same on all hosts."""
BEGIN_NS = 4_719_635_738_000_000
"""True time 0 of the simulation, after that."""
DEVICE = {
    "name": "NVIDIA A100-SXM4-80GB",
    "totalGlobalMem": 84_987_740_160,
    "computeMajor": 8,
    "computeMinor": 0,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65536,
    "warpSize": 32,
    "sharedMemPerBlock": 49152,
    "numSms": 108,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerBlockOptin": 166912,
    "sharedMemPerMultiprocessor": 167936,
}


def write(spec: Spec, traces: Sequence[Sequence[Event]], folder: Path, *, compress: bool = False) -> list[Path]:
    """Write one file a rank into a folder; returns them in the order of ranks."""
    files = []
    for rank, events in enumerate(traces):
        path = folder / f"rank{rank}.json{'.gz' if compress else ''}"
        text = json.dumps(chrome_trace(spec, rank, events), separators=(",", ":")).encode()
        path.write_bytes(gzip.compress(text, 1, mtime=0) if compress else text)
        files.append(path)
    return files


def chrome_trace(spec: Spec, rank: int, events: Sequence[Event]) -> dict[str, Any]:
    """The object in the file of one rank."""
    host = rank // spec.clocks.ranks_per_host
    place = Places(spec, rank)
    told: dict[str, Any] = {"schemaVersion": 1}
    if spec.device:
        told["deviceProperties"] = [{"id": rank % spec.clocks.ranks_per_host, **DEVICE}]
        told["cuda_runtime_version"] = 12040
    else:
        told["deviceProperties"] = []
    told["record_shapes"] = 1
    told["distributedInfo"] = _distributed(spec, rank)
    written = [part for event in events for part in place.written(event)]
    if spec.format == "nanoseconds":
        told |= {"host_name": f"node-{host}", "displayTimeUnit": "ms", "baseTimeNanoseconds": EPOCH_NS}
    told["traceEvents"] = [*written, *place.names()]
    told["traceName"] = f"rank{rank}.json"
    return told


def _distributed(spec: Spec, rank: int) -> dict[str, Any]:
    info: dict[str, Any] = {"backend": "nccl" if spec.device else "gloo", "rank": rank, "world_size": spec.ranks}
    if spec.format == "microseconds":
        return info
    groups = [tuple(range(spec.ranks))]
    if spec.parallel != "ddp":
        groups += [group for group in (spec.inner(rank), spec.replicas(rank)) if 1 < len(group) < spec.ranks]
    backend = "cuda:nccl" if spec.device else "cpu:gloo,cuda:gloo"
    configs = [
        {
            "pg_name": str(number),
            "pg_desc": "undefined" if number else "default_pg",
            "backend_config": backend,
            "pg_size": len(group),
            "ranks": group,
        }
        for number, group in enumerate(groups)
    ]
    return {**info, "pg_count": len(groups), "pg_config": configs}


class Places:
    """Processes, threads, and the clock of one rank's trace."""

    def __init__(self, spec: Spec, rank: int) -> None:
        clocks = spec.clocks
        self.host = rank // clocks.ranks_per_host
        self.process = 4000 + 200 * rank
        self.device = rank % clocks.ranks_per_host
        self.nanoseconds = spec.format == "nanoseconds"
        self.offset = clocks.offsets_ns[self.host % len(clocks.offsets_ns)] + BEGIN_NS
        self.drift = clocks.drifts[self.host % len(clocks.drifts)]
        self.threads: dict[str, int] = {}
        self.count = 0

    def thread(self, place: str) -> int:
        """The `tid` of a place."""
        if place not in self.threads:
            kind, _, number = place.partition(" ")
            first = {"main": 0, "engine": 90, "gloo": 30, "stream": -self.process}[kind]
            self.threads[place] = self.process + first + int(number or 0)
        return self.threads[place]

    def shown(self, true_ns: int) -> int:
        """What the clock of the host shows: nanoseconds after the base, or since 1970."""
        shown = true_ns + round(true_ns * self.drift) + self.offset
        return shown if self.nanoseconds else shown + EPOCH_NS

    def written(self, event: Event) -> list[dict[str, Any]]:
        """A complete event, and what kineto adds to it."""
        begin, end = self.shown(event.begin), self.shown(event.end)
        ts, dur = begin / 1000, (end - begin) / 1000
        if not self.nanoseconds:
            ts, dur = begin // 1000, float(end // 1000 - begin // 1000)
        on_device = event.place.startswith("stream")
        args, title = dict(event.args), event.args.get("title")
        args.pop("title", None)
        if not on_device:
            self.count += 1
            args["External id"] = self.count
            if event.category != "cuda_runtime":
                args["Ev Idx"] = self.count - 1
        told = {
            "ph": "X",
            "cat": event.category,
            "name": event.name,
            "pid": self.device if on_device else self.process,
            "tid": self.thread(event.place),
            "ts": ts,
            "dur": dur,
            "args": args,
        }
        if not title:
            return [told]
        # Kineto shows the annotation of a collective over its kernel, a nanosecond earlier and later.
        shadow = {
            "cat": "gpu_user_annotation",
            "name": title,
            "ts": (begin - 1) / 1000,
            "dur": (end - begin + 2) / 1000,
        }
        return [told, {**told, **shadow, "args": {"External id": self.count}}]

    def names(self) -> list[dict[str, Any]]:
        """Names of processes and threads."""
        first = {"ph": "M", "ts": self.shown(0) / 1000 if self.nanoseconds else self.shown(0) // 1000}
        named = [{**first, "name": "process_name", "pid": self.process, "tid": 0, "args": {"name": "python"}}]
        for place, thread in self.threads.items():
            process = self.device if place.startswith("stream") else self.process
            name = f"thread {thread} (pt_gloo_runloop)" if place.startswith("gloo") else f"{place} "
            named.append({**first, "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}})
        return named
