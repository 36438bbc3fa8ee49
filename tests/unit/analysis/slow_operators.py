"""Operators read slowly and independently: the json module, sorted lists and a stack, one event at a time."""

from __future__ import annotations

import bisect
import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal

from unit.analysis.reference import ANNOTATION, CALL, DEVICE, OPERATOR


class Operators:
    """The operators of a file: parents, self times and device times."""

    def __init__(self, path):
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        events = [event for event in json.loads(data, parse_float=Decimal)["traceEvents"] if event["ph"] == "X"]
        for event in events:
            event["start"] = int(event["ts"] * 1000)
            event["end"] = event["start"] + int(event["dur"] * 1000)
            event["thread"] = (str(event["pid"]), str(event["tid"]))
        self.device = [event for event in events if event.get("cat") in DEVICE]
        self.operators = [
            event for event in events if event.get("cat") in OPERATOR and not ANNOTATION.match(event["name"])
        ]
        self.calls = {}
        for event in sorted(events, key=lambda event: event["start"]):
            if event.get("cat") in CALL and "correlation" in event["args"]:
                self.calls.setdefault(event["args"]["correlation"], event)
        self.by_thread = defaultdict(list)
        for event in sorted(self.operators, key=lambda event: (event["start"], -event["end"])):
            self.by_thread[event["thread"]].append(event)
        for own in self.by_thread.values():
            self._nest(own)

    @staticmethod
    def _nest(own):
        running = []
        for event in own:
            while running and running[-1]["end"] <= event["start"]:
                running.pop()
            event["around"] = running[-1] if running else None
            running.append(event)

    def self_ns(self):
        """Self time by name, over all threads and the whole file."""
        total = Counter()
        for event in self.operators:
            total[event["name"]] += event["end"] - event["start"]
            if event["around"]:
                total[event["around"]["name"]] -= event["end"] - event["start"]
        return total

    def total_ns(self):
        """Time by name, an operator inside another of its name not counted again."""
        total = Counter()
        for event in self.operators:
            around = event["around"]
            while around and around["name"] != event["name"]:
                around = around["around"]
            if not around:
                total[event["name"]] += event["end"] - event["start"]
        return total

    def launched(self):
        """Each device event and the innermost operator around its launching call."""
        for event in self.device:
            call = self.calls.get(event["args"].get("correlation"))
            found = None
            if call and (own := self.by_thread[call["thread"]]):
                before = bisect.bisect_right(own, call["start"], key=lambda operator: operator["start"])
                found = own[before - 1] if before else None
                while found and not (found["start"] <= call["start"] and call["end"] <= found["end"]):
                    found = found["around"]
            yield event, found

    def device_ns(self):
        """Self and total device time by name, and the time of events without an operator."""
        own, total, alone = Counter(), Counter(), 0
        for event, operator in self.launched():
            time = event["end"] - event["start"]
            if operator is None:
                alone += time
                continue
            own[operator["name"]] += time
            names = set()
            while operator:
                names.add(operator["name"])
                operator = operator["around"]
            total.update(dict.fromkeys(names, time))
        return own, total, alone
