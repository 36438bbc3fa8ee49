"""An independent, slow reading of a trace: the json module, integers, lists of intervals, brute force.

It shares no code with the package, so that agreement to the nanosecond means something. It knows the cases
that the public traces hold: nested operators, launches joined on correlation, no setup annotations.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from decimal import Decimal

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
KERNEL = {"kernel", "Kernel"}
CALL = {"cuda_runtime", "cuda_driver", "Runtime"}
OPERATOR = {"cpu_op", "Operator"}
ANNOTATION = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#")
ENGINE = re.compile(r"autograd::engine::evaluate_function|torch::autograd::|\w+Backward\d*$")


class Reference:
    def __init__(self, path):
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        top = json.loads(data, parse_float=Decimal)
        self.events = [event for event in top["traceEvents"] if event["ph"] == "X"]
        for event in self.events:
            event["start"] = int(event["ts"] * 1000)
            event["end"] = event["start"] + int(event["dur"] * 1000)
            event["thread"] = (str(event["pid"]), str(event["tid"]))
            event["cat"] = event.get("cat", "")
            event["args"] = event.get("args", {})
        self.device = [event for event in self.events if event["cat"] in DEVICE]
        self.kernels = [event for event in self.events if event["cat"] in KERNEL]
        self.calls = {}
        for event in sorted(self.events, key=lambda event: event["start"]):
            if event["cat"] in CALL and "correlation" in event["args"]:
                self.calls.setdefault(event["args"]["correlation"], event)
        self.operators = [
            event for event in self.events if event["cat"] in OPERATOR and not ANNOTATION.match(event["name"])
        ]
        self.inputs = [
            event
            for event in self.events
            if event["name"].startswith("enumerate(DataLoader)") and event["cat"] != "gpu_user_annotation"
        ]
        steps = [
            event
            for event in self.events
            if event["name"].startswith("ProfilerStep#") and event["cat"] != "gpu_user_annotation"
        ]
        steps.sort(key=lambda event: event["start"])
        if len(steps) > 1 and not self._within(steps[-1], self.operators):
            steps.pop()
        self.steps = steps

    @staticmethod
    def _within(step, events):
        return [event for event in events if step["start"] <= event["start"] < step["end"]]

    def launch(self, event):
        return self.calls.get(event["args"].get("correlation"))

    def launched_in(self, step):
        return [
            event
            for event in self.device
            if (call := self.launch(event)) and step["start"] <= call["start"] < step["end"]
        ]

    def windows(self):
        found, since = [], self.steps[0]["start"]
        for step in self.steps:
            ends = [event["end"] for event in self.launched_in(step)] if self.device else []
            opens = since if self.device else step["start"]
            since = max([step["end"], *ends, since])
            found.append((opens, since))
        return found

    def threads(self):
        """The step's thread, then every thread on which the autograd engine runs."""
        main = self.steps[0]["thread"]
        engine = [event["thread"] for event in self.operators if ENGINE.match(event["name"])]
        return [main, *(thread for thread in dict.fromkeys(engine) if thread != main)]

    def self_intervals(self, thread):
        """For each operator of a thread its interval without those of its direct children."""
        own = [event for event in self.operators if event["thread"] == thread]
        own.sort(key=lambda event: (event["start"], -event["end"]))
        children = defaultdict(list)
        ancestors = []
        for event in own:
            while ancestors and ancestors[-1]["end"] <= event["start"]:
                ancestors.pop()
            if ancestors:
                children[id(ancestors[-1])].append((event["start"], event["end"]))
            ancestors.append(event)
        for event in own:
            yield event["name"], subtract([(event["start"], event["end"])], children[id(event)])

    def self_times(self, threads):
        """Self time by name inside the steps and outside the input."""
        total = Counter()
        inside = [(step["start"], step["end"]) for step in self.steps]
        for thread in threads:
            waits = [(event["start"], event["end"]) for event in self.inputs if event["thread"] == thread]
            for name, pieces in self.self_intervals(thread):
                total[name] += length(intersect(subtract(pieces, waits), inside))
        return +total

    def counts(self, threads):
        """How often each operator starts in each step."""
        return [
            Counter(event["name"] for event in self._within(step, self.operators) if event["thread"] in threads)
            for step in self.steps
        ]

    def kernel_table(self):
        counts, totals = Counter(), Counter()
        for step in self.steps:
            for event in self.launched_in(step):
                counts[event["name"]] += 1
                totals[event["name"]] += event["end"] - event["start"]
        return {name: (counts[name], totals[name]) for name in counts}

    def classes(self):
        """Compute, communication and copies as unions."""
        compute, communication, copies = [], [], []
        for event in self.device:
            if event["cat"] not in KERNEL:
                target = copies
            elif "nccl" in event["name"].lower():
                target = communication
            else:
                target = compute
            target.append((event["start"], event["end"]))
        return union(compute), union(communication), union(copies)


def union(intervals):
    merged = []
    for start, end in sorted(intervals):
        if start == end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def subtract(intervals, others):
    for start, end in others:
        cut = []
        for a, b in intervals:
            cut += [(a, min(b, start)), (max(a, end), b)] if start < b and a < end else [(a, b)]
        intervals = [(a, b) for a, b in cut if a < b]
    return intervals


def intersect(intervals, others):
    found = [(max(a, c), min(b, d)) for a, b in intervals for c, d in others]
    return [(a, b) for a, b in found if a < b]


def length(intervals):
    return sum(end - start for start, end in intervals)
