"""The rules of Perfetto's JSON importer, written down apart from the writer: what it would drop or move is an error."""

from collections import Counter, defaultdict

PHASES = set("XiCsfM")
METADATA = {"process_name", "thread_name", "process_sort_index", "thread_sort_index", "process_labels"}


def problems(events):
    """One line for each rule that the events break; times are numbers of any one unit."""
    found = []
    slices = defaultdict(list)
    for event in events:
        told = f"{event.get('ph')} {event.get('name')!r}"
        if event.get("ph") not in PHASES:
            found.append(f"{told}: unknown phase")
            continue
        for name in ("pid", "tid"):
            number = event.get(name)
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**32:
                found.append(f"{told}: {name} {number!r} is no number that the importer keeps")
        if event["ph"] == "M":
            if event["name"] not in METADATA:
                found.append(f"{told}: metadata that nobody reads")
            continue
        if event.get("ts") is None or event["ts"] < 0:
            found.append(f"{told}: no time")
        if event["ph"] == "X":
            if event.get("dur") is None or event["dur"] < 0:
                found.append(f"{told}: no duration")
            else:
                slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
        if event["ph"] == "C" and not all(
            isinstance(value, (int, float)) or hasattr(value, "as_tuple") for value in event["args"].values()
        ):
            found.append(f"{told}: a counter that does not count")
        if event["ph"] == "f" and event.get("bp") != "e":
            found.append(f"{told}: binds to the next slice, not to the one around it")
    for thread, own in slices.items():
        found += [f"{thread}: {one!r} and {other!r} overlap without nesting" for one, other in _crossing(own)]
    return [*found, *_flow_problems(events, slices)]


def _crossing(slices):
    open_until = []
    for start, end, name in sorted(slices, key=lambda one: (one[0], -one[1])):
        while open_until and open_until[-1][0] <= start:
            open_until.pop()
        if open_until and open_until[-1][0] < end:
            yield open_until[-1][1], name
        open_until.append((end, name))


def _flow_problems(events, slices):
    ends = defaultdict(list)
    for event in events:
        if event.get("ph") in ("s", "f"):
            # Two flows of equal category, name and id are one to the importer.
            ends[event.get("cat"), event["name"], event["id"]].append(event)
    for key, both in ends.items():
        if Counter(event["ph"] for event in both) != {"s": 1, "f": 1}:
            yield f"flow {key} has not one start and one end"
            continue
        start, end = sorted(both, key=lambda event: "sf".index(event["ph"]))
        if start["ts"] > end["ts"]:
            yield f"flow {key} ends before it starts"
        for event in both:
            around = slices.get((event["pid"], event["tid"]), [])
            if not any(opens <= event["ts"] <= closes for opens, closes, _ in around):
                yield f"flow {key}: no slice at its {event['ph']}"
