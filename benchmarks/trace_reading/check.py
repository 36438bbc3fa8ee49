"""Checks that a synthetic trace agrees with itself, with plain json and loops: exits with 1 and says where not.

    python benchmarks/trace_reading/check.py TRACE.json[.gz]

Host events of a thread nest; every launch is inside the operator that its `External id` names; every kernel, copy and
memset begins after the end of its launch; streams do one thing at a time; memory totals are the sums of the events,
no live addresses overlap, and at the end nothing is left of what was allocated.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]
_HOST = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def load(path: Path) -> list[Event]:
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return list(json.loads(text)["traceEvents"])


def start_ns(event: Event) -> int:
    return round(float(event["ts"]) * 1000)


def end_ns(event: Event) -> int:
    return start_ns(event) + round(float(event["dur"]) * 1000)


def problems(events: Sequence[Event]) -> Iterator[str]:
    yield from _nesting(events)
    yield from _launches(events)
    yield from _streams(events)
    yield from _memory(events)
    yield from _links(events)


def _threads(events: Sequence[Event], categories: Sequence[str]) -> Iterator[list[Event]]:
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") in categories:
            threads[event["pid"], event["tid"]].append(event)
    for thread in threads.values():
        yield sorted(thread, key=lambda event: (start_ns(event), -end_ns(event)))


def _nesting(events: Sequence[Event]) -> Iterator[str]:
    for thread in _threads(events, _HOST):
        ends: list[int] = []
        for event in thread:
            while ends and ends[-1] <= start_ns(event):
                ends.pop()
            if ends and ends[-1] < end_ns(event):
                yield f"{event['name']} at {event['ts']} ends after what it began in"
            ends.append(end_ns(event))


def _launches(events: Sequence[Event]) -> Iterator[str]:
    operators = {e["args"]["External id"]: e for e in events if e.get("cat") in ("cpu_op", "user_annotation")}
    calls: dict[int, Event] = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            calls[event["args"]["correlation"]] = event
            operator = operators.get(event["args"]["External id"])
            if operator is None or not (
                start_ns(operator) <= start_ns(event)
                and end_ns(event) <= end_ns(operator)
                and operator["tid"] == event["tid"]
            ):
                yield f"{event['name']} at {event['ts']} is not inside its operator"
    for event in events:
        if event.get("cat") in _DEVICE:
            call = calls.get(event["args"]["correlation"])
            if call is None or start_ns(event) < end_ns(call):
                yield f"{event['name'][:40]} at {event['ts']} begins before its launch"


def _streams(events: Sequence[Event]) -> Iterator[str]:
    for stream in _threads(events, _DEVICE):
        for before, after in itertools.pairwise(stream):
            if end_ns(before) > start_ns(after):
                yield f"{after['name'][:40]} at {after['ts']} overlaps the one before on its stream"


def _memory(events: Sequence[Event]) -> Iterator[str]:
    kinds: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["name"] == "[memory]":
            kinds[event["args"]["Device Type"]].append(event)
    for rows in kinds.values():
        rows.sort(key=start_ns)
        total = rows[0]["args"]["Total Allocated"] - rows[0]["args"]["Bytes"]
        live: dict[int, int] = {}
        for event in rows:
            args = event["args"]
            total += args["Bytes"]
            if total != args["Total Allocated"] or (args["Device Type"] and total > args["Total Reserved"]):
                yield f"[memory] at {event['ts']}: the total is {total}"
            if args["Bytes"] < 0 and live.pop(args["Addr"], None) != -args["Bytes"]:
                yield f"[memory] at {event['ts']} frees what is not allocated"
            if args["Bytes"] > 0:
                live[args["Addr"]] = args["Bytes"]
        if live:
            yield f"{len(live)} allocations are never freed"
        blocks = sorted({(e["args"]["Addr"], e["args"]["Bytes"]) for e in rows if e["args"]["Bytes"] > 0})
        for (address, size), (following, _) in itertools.pairwise(blocks):
            if address + size > following:
                yield f"blocks at {address} and {following} overlap"


def _links(events: Sequence[Event]) -> Iterator[str]:
    for name in ("ac2g", "fwdbwd"):
        ends = Counter((event["id"], event["ph"]) for event in events if event.get("cat") == name)
        alone = sum(1 for (number, phase), count in ends.items() if count != 1 or not ends[number, "sf"[phase == "s"]])
        if alone:
            yield f"{alone} ends of {name} flows are alone or double"
    indices = [e["args"]["Ev Idx"] for e in events if "Ev Idx" in e.get("args", {})]
    if indices != list(range(len(indices))):
        yield "Ev Idx does not count the rows of the file"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    found = 0
    for path in parser.parse_args().traces:
        events = load(path)
        listed = list(problems(events))
        found += len(listed)
        print(f"{path}: {len(events)} events, {len(listed)} problems")
        for line in listed[:10]:
            print(f"  {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
