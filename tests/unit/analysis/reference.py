"""An independent, slow reading of a trace: the json module, integers, lists of intervals, brute force.

It shares no code with the package, so that agreement to the nanosecond means something. It knows the cases
that the public traces hold: nested operators, launches joined on correlation, no setup annotations. A trace
without steps is one step over everything. It does not judge which steps are damaged, but is told.
"""

from __future__ import annotations

import bisect
import gzip
import itertools
import json
import re
from collections import Counter, defaultdict
from decimal import Decimal
from functools import cached_property

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
KERNEL = {"kernel", "Kernel"}
CALL = {"cuda_runtime", "cuda_driver", "Runtime"}
OPERATOR = {"cpu_op", "Operator"}
ANNOTATION = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#")
ENGINE = re.compile(r"autograd::engine::evaluate_function|torch::autograd::|\w+Backward\d*$")
BLOCKING = {f"{api}{what}Synchronize" for api in ("cuda", "hip") for what in ("Device", "Stream", "Event")}
BLOCKING |= {
    "cudaMemcpy",
    "hipMemcpy",
    "hipMemcpyWithStream",
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
}
SEVERAL = re.compile(r"graph|mem(cpy|set|prefetch)", re.IGNORECASE)
"""Calls that may have several kernels."""
KNOWN_END = re.compile("without time of their own|after a step whose last device event")
"""Reasons for which a step is left out although it ends where the next one begins."""
UNSET = {None, 0, -1, 2**32 - 1}
COLLECTIVE = ("c10d::", "nccl:", "record_param_comms")


class Reference:
    def __init__(self, data, left_out=()):
        """Of a file's bytes, and number and reason of each step that is left out."""
        self.left_out = dict(left_out)
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
        if len(steps) > 1 and self._leftover(*steps[:-1], last=steps[-1]):
            steps.pop()
        self.whole = not steps
        self.steps = steps or self._everything()

    def _everything(self):
        """One step over all that the host did, on the thread that did most."""
        host = [*self.operators, *(event for event in self.events if event["cat"] in CALL)] or self.device
        if not host:
            return []
        # Of equals, the thread that comes first by start, operators before calls.
        order = sorted(host, key=lambda event: (event["cat"] in CALL, event["start"], -event["end"]))
        busiest = Counter(event["thread"] for event in order).most_common(1)[0][0]
        start, end = min(event["start"] for event in host), max(event["end"] for event in host)
        return [{"start": start, "end": end, "thread": busiest}]

    def _leftover(self, *others, last):
        """Whether the last step is empty and short, after one that was not empty, and its thread is done."""
        work = [*self.operators, *(event for event in self.events if "Launch" in event["name"])]
        full = [
            any(event["start"] < step["end"] and event["end"] > step["start"] for event in work)
            for step in (others[-1], last)
        ]
        length = last["end"] - last["start"]
        own = [event for event in work if event["thread"] == last["thread"]]
        goes_on = sum(event["start"] >= last["end"] for event in own) > len(self._within(others[-1], own)) / 2
        return (
            full == [True, False] and not goes_on and all(length * 10 <= step["end"] - step["start"] for step in others)
        )

    @staticmethod
    def _within(step, events):
        return [event for event in events if step["start"] <= event["start"] < step["end"]]

    def launch(self, event):
        return self._links.get(id(event))

    @cached_property
    def _links(self):
        """The call of each device event, but for what no call can have launched."""
        return {key: call for key, call in self._claims.items() if key not in self._refused}

    @cached_property
    def _claims(self):
        """The call that each device event's correlation names: the outer one, the last that begins before it."""
        calls, seen = defaultdict(list), defaultdict(list)
        for event in sorted(self.events, key=lambda event: (event["start"], -event["end"])):
            if event["cat"] in CALL and event["args"].get("correlation") not in UNSET:
                correlation = event["args"]["correlation"]
                if not any(other["start"] <= event["start"] < other["end"] for other in seen[correlation]):
                    calls[correlation].append(event)
                seen[correlation].append(event)
        found = {}
        for event in self.device:
            own = calls.get(event["args"].get("correlation"), [])
            before = [call for call in own if call["start"] <= event["start"]]
            if own:
                found[id(event)] = before[-1] if before else own[0]
        return found

    @cached_property
    def _refused(self):
        """Of kernels that share a plain call, all; and what ends before its call begins while others do not."""
        kernels = defaultdict(list)
        for event in self.kernels:
            if id(event) in self._claims:
                kernels[id(self._claims[id(event)]), event["pid"]].append(event)
        shared = {
            id(event)
            for own in kernels.values()
            if len(own) > 1 and not SEVERAL.search(self._claims[id(own[0])]["name"])
            for event in own
        }
        early = set()
        for pid in {event["pid"] for event in self.device}:
            own = [each for each in self.device if each["pid"] == pid and id(each) in self._claims.keys() - shared]
            call = [self._claims[id(event)]["start"] for event in own]
            wrong = [begins > event["end"] for begins, event in zip(call, own, strict=True)]
            ahead = [begins - event["start"] for begins, event in zip(call, own, strict=True)]
            sane = [each for each, bad in zip(ahead, wrong, strict=True) if not bad]
            if sum(wrong) > max(3, len(own) / 10):
                # It is the clocks.
                continue
            skew = max([0, *sane])
            early |= {
                id(event)
                for begins, event, bad in zip(call, own, wrong, strict=True)
                if bad and begins - event["end"] > skew
            }
        refused = shared | early
        streams = defaultdict(list)
        for event in sorted(self.device, key=lambda event: (event["start"], -event["end"])):
            if id(event) in self._claims.keys() - refused:
                streams[event["pid"], event["tid"]].append(event)
        for own in streams.values():
            odd = out_of_order(own, [self._claims[id(event)] for event in own])
            if len(odd) <= max(2, len(own) / 20):
                refused |= {id(event) for event in odd}
        return refused

    @cached_property
    def carried(self):
        """Without a call, but ahead of all of their stream that have one: launched before the profiler began."""
        streams = defaultdict(list)
        for event in sorted(self.device, key=lambda event: (event["start"], -event["end"])):
            streams[event["pid"], event["tid"]].append(event)
        found = []
        for own in streams.values():
            if any(map(self.launch, own)):
                found += itertools.takewhile(lambda event: not self.launch(event), own)
        found = [event for event in found if event["args"].get("correlation") not in UNSET]
        return [event for event in found if id(event) not in self._refused]

    def launched_in(self, step):
        return [
            event
            for event in self.device
            if (call := self.launch(event)) and step["start"] <= call["start"] < step["end"]
        ]

    def windows(self):
        if self.whole:
            everything = [*self.device, *self.steps] if -1 not in self.left_out else []
            if not everything:
                return []
            return [(min(event["start"] for event in everything), max(event["end"] for event in everything))]
        found, since, last, window = [], None, None, 0
        for step in self.steps:
            number = int(step["name"].partition("#")[2])
            reason = self.left_out.get(number, "")
            done = max([step["end"], *(event["end"] for event in self.launched_in(step) if self.device)])
            if not self.device:
                opens = step["start"]
            elif (
                since is not None
                and number == last + 1
                and (step["start"] - since <= max(step["end"] - step["start"], window))
            ):
                opens, done = since, max(done, since)
            else:
                earlier = [
                    each for each in self.device if (call := self.launch(each)) and call["start"] < step["start"]
                ]
                ends = [event["end"] for event in [*earlier, *self.carried] if event["end"] <= done]
                opens = max([step["start"], *ends])
            # The end of some that are left out is known: the next one begins there.
            window = done - opens
            since, last = None if reason and not KNOWN_END.search(reason) else done, number
            if not reason:
                found.append((opens, done))
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

    def communicates(self, event):
        """By name, or because a collective is the innermost range around its launch."""
        if any(name in event["name"] for name in ("nccl", "deep_ep")):
            return True
        call = self.launch(event)
        if not call or not self.collectives:
            return False
        around = [other for other in self.ranges[call["thread"]] if other["start"] <= call["start"] < other["end"]]
        # Sorting keeps the order of the file: of two equal ranges the second is inside the first.
        innermost = sorted(around, key=lambda other: (other["start"], -other["end"]))[-1:] or [{"name": ""}]
        return innermost[0]["name"].startswith(COLLECTIVE)

    @cached_property
    def ranges(self):
        """Operators and annotations of each thread."""
        found = defaultdict(list)
        for event in self.events:
            if event["cat"] in OPERATOR | {"user_annotation"}:
                found[event["thread"]].append(event)
        return found

    @cached_property
    def collectives(self):
        return any(event["name"].startswith(COLLECTIVE) for event in self.events)

    @cached_property
    def kinds(self):
        """Each device event's class."""
        return [
            "copy" if event["cat"] not in KERNEL else "communication" if self.communicates(event) else "compute"
            for event in self.device
        ]

    def classes(self):
        """Compute, communication and copies as unions."""
        return tuple(
            union(
                (event["start"], event["end"])
                for event, own in zip(self.device, self.kinds, strict=True)
                if own == kind
            )
            for kind in ("compute", "communication", "copy")
        )

    def device_figures(self):
        """Lengths over the whole file, under the names that the package uses."""
        compute, communication, copies = self.classes()
        busy = union([*compute, *communication, *copies])
        span = max(event["end"] for event in self.device) - min(event["start"] for event in self.device)
        exposed = length(subtract_sorted(communication, compute))
        return {
            "span_ns": span,
            "busy_ns": length(busy),
            "idle_ns": span - length(busy),
            "compute_ns": length(compute),
            "communication_ns": length(communication),
            "communication_overlapped_ns": length(communication) - exposed,
            "communication_exposed_ns": exposed,
            "copies_ns": length(copies),
            "exposed_copies_ns": length(subtract_sorted(copies, union([*compute, *communication]))),
        }

    def kernel_sums(self):
        """Count and sum of durations over the whole file by name and class."""
        found = defaultdict(lambda: [0, 0])
        for event, kind in zip(self.device, self.kinds, strict=True):
            row = found[event["name"], kind]
            row[0] += 1
            row[1] += event["end"] - event["start"]
        return {key: tuple(row) for key, row in found.items()}

    def accounts(self):
        """The device account of each window, idle time explained one interval after the other."""
        compute, communication, copies = self.classes()
        busy = union([*compute, *communication, *copies])
        exposed = subtract_sorted(communication, compute)
        exposed_copies = subtract_sorted(copies, union([*compute, *communication]))
        by_start = defaultdict(list)
        for event in self.device:
            by_start[event["start"]].append(event)
        accounts = []
        for window in self.windows():
            account = Counter()
            account["compute"] = length(clip(compute, *window))
            account["exposed communication"] = length(clip(exposed, *window))
            account["exposed copies"] = length(clip(exposed_copies, *window))
            for opens, closes in subtract_sorted([window], busy) if window[0] < window[1] else []:
                until = min((start for start, _ in busy if start >= closes), default=None)
                calls = [call for event in by_start[until] if (call := self.launch(event))]
                if until is None:
                    # The steps' thread launches nothing before the end of the file.
                    call = {"start": closes, "thread": self.steps[0]["thread"]}
                elif calls:
                    call = min(calls, key=lambda call: call["start"])
                else:
                    account["unattributed"] += closes - opens
                    continue
                launched = min(call["start"], closes)
                if launched < opens:
                    account["device wait"] += closes - opens
                    continue
                account["launch latency"] += closes - launched
                late = [(opens, launched)] if opens < launched else []
                for cause, intervals in self.causes(call["thread"]).items():
                    rest = subtract_sorted(late, clip(intervals, opens, launched))
                    account[cause] += length(late) - length(rest)
                    late = rest
                account["Python and host"] += length(late)
            accounts.append(+account)
        return accounts

    def causes(self, thread):
        """What a host thread did, in the order in which it counts."""
        if thread not in self.known_causes:
            inputs = [event for event in self.inputs if event["thread"] == thread]
            own = [*self.operators, *(event for event in self.events if event["cat"] in CALL)]
            own = [event for event in own if event["thread"] == thread]
            self.known_causes[thread] = {
                cause: union((event["start"], event["end"]) for event in events)
                for cause, events in (
                    ("input", inputs),
                    ("synchronization", [event for event in own if event["name"] in BLOCKING]),
                    ("operator overhead", own),
                )
            }
        return self.known_causes[thread]

    @cached_property
    def known_causes(self):
        return {}


def out_of_order(events, calls):
    """Of a stream's events the fewest without which calls never begin earlier than those before them."""
    if not any(after["end"] < before["start"] for before, after in itertools.pairwise(calls)):
        return []
    longest = []
    for place, call in enumerate(calls):
        behind = [found for found, other in zip(longest, calls[:place], strict=True) if other["start"] <= call["start"]]
        longest.append(1 + max(behind, default=0))
    odd, wanted = [], max(longest)
    # Of several the last one.
    for event, length in reversed(list(zip(events, longest, strict=True))):
        if length == wanted:
            wanted -= 1
        else:
            odd.append(event)
    return odd


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


def clip(intervals, start, end):
    """What of sorted disjoint intervals lies in [start, end)."""
    first = bisect.bisect_right(intervals, start, key=lambda interval: interval[1])
    found = []
    for a, b in intervals[first:]:
        if a >= end:
            break
        found.append((max(a, start), min(b, end)))
    return found


def subtract_sorted(intervals, others):
    """`subtract` for sorted disjoint intervals: only the near ones are looked at."""
    return [piece for start, end in intervals for piece in subtract_one(start, clip(others, start, end), end)]


def subtract_one(start, others, end):
    edges = [start, *(edge for other in others for edge in other), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


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
