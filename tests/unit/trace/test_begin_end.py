"""Begin and end events: the same trace as with complete events, in whatever order, and in slices."""

import gzip
import json
import random
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.analysis.overview.summary import summarize
from pytest_perfdl.model.selection import Selection
from pytest_perfdl.report.trace.json import to_json
from pytest_perfdl.trace import loads, read
from unit.trace.chrome import DATA, kernel, launch, memory, step, text, trace, x
from unit.trace.test_slices import assert_equal

AROUND = "the event around it, or with the last event of its thread"
FIELDS = ("start", "duration", "pid", "tid", "correlation")


def pair(event, *, named=True):
    """A complete event as a begin and an end event."""
    if event.get("ph") != "X":
        return [event]
    begin = {key: value for key, value in event.items() if key != "dur"} | {"ph": "B"}
    end = {key: event[key] for key in ("pid", "tid", *(["name", "cat"] if named else []))}
    return [begin, {**end, "ph": "E", "ts": float(Decimal(str(event["ts"])) + Decimal(str(event["dur"])))}]


def in_place(events, *, named=True):
    """Each complete event replaced where it stands."""
    return [each for event in events for each in pair(event, named=named)]


def nested(depth, start, length, chance, tid=100):
    """An event and those inside it, with shared borders and with empty events; parents before their children."""
    found = [x(f"op {depth}", start, length, tid=tid, depth=depth)]
    at = start
    while depth < 4 and at < start + length and chance.random() < 0.8:
        inner = chance.randint(0, int(start + length - at))
        found += nested(depth + 1, at, inner, chance, tid)
        at += inner + chance.choice((0, 0, 1))
    return found


def legal(events, *, named=True):
    """The same as the format asks for it: each thread's events in the order of time, as a stack."""
    found = []
    for thread in dict.fromkeys((event["pid"], event["tid"]) for event in events):
        opened = []
        for event in (event for event in events if (event["pid"], event["tid"]) == thread):
            begin, end = pair(event, named=named)
            while opened and opened[-1][0]["ts"] + opened[-1][0]["dur"] <= event["ts"] and not inside(opened, event):
                found.append(opened.pop()[1])
            found.append(begin)
            opened.append((event, end))
        found += [end for _, end in reversed(opened)]
    return found


def inside(opened, event):
    """Whether an event that begins where the last opened one ends is one of those in it."""
    return event["args"]["depth"] > opened[-1][0]["args"]["depth"]


def same(found, expected):
    for field in FIELDS:
        assert np.array_equal(getattr(found, field), getattr(expected, field)), field
    rows = range(len(expected))
    assert [found.name_of(row) for row in rows] == [expected.name_of(row) for row in rows]
    assert [found.args(row) for row in rows] == [expected.args(row) for row in rows]
    assert found.findings == expected.findings


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("order", [in_place, legal])
@given(st.integers(0, 10**6), st.integers(1, 900))
@settings(max_examples=60, deadline=None)
def test_pairs_are_read_as_complete_events(order, named, seed, slice_bytes):
    chance = random.Random(seed)
    events = [*nested(0, 0, 40, chance), *nested(0, 40, 9, chance), *nested(0, 3, 30, chance, tid=7)]
    data = text(order(events, named=named))
    found = loads(data)
    same(found, trace(*events))
    assert_equal(loads(data, slice_bytes=slice_bytes), found)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_order_in_the_file_does_not_matter_where_times_differ(seed):
    chance = random.Random(seed)
    spans = [(1, 90), (2, 40), (3, 9), (10, 30), (11, 29), (41, 80), (42, 43), (44, 79), (91, 95)]
    events = [x(f"op {start}", start, end - start) for start, end in spans]
    shuffled = in_place(events, named=chance.random() < 0.5)
    chance.shuffle(shuffled)
    found = loads(text(shuffled), slice_bytes=200)
    assert sorted(zip(found.start.tolist(), found.duration.tolist(), strict=True)) == [
        (start * 1000, (end - start) * 1000) for start, end in spans
    ]
    assert found.findings == ()


@pytest.mark.parametrize("name", ["device_cuda", "device_rocm", "train", "stack", "gloo_rank0"])
def test_a_recording_in_pairs_has_the_same_figures(name):
    path = DATA / f"{name}.json.gz"
    whole = json.loads(gzip.decompress(path.read_bytes()))
    expected = read(path)
    data = json.dumps({**whole, "traceEvents": in_place(whole["traceEvents"])}).encode()
    found = loads(data, str(path), slice_bytes=5000, spill_bytes=10_000)
    same(found, expected)
    figures = [to_json([summarize(each)], None, [None], Selection()) for each in (found, expected)]
    assert figures[0] == figures[1]


def test_arguments_of_both_are_merged_and_the_end_has_the_last_word():
    begin, end = pair(launch(1, 2, 5))
    begin["args"] = {"cbid": 1, "a": [1]}
    end["args"] = {"correlation": 5, "a": 2}
    for spill_bytes in (0, 2**20):
        found = loads(text([begin, x("op", 9, 1), end, kernel("k", 3, 1, 5)]), spill_bytes=spill_bytes)
        assert found.args(0) == {"cbid": 1, "a": 2, "correlation": 5}
        assert found.correlation.tolist() == [5, -1, 5]
        assert [found.args(row) for row in (1, 2)] == [{}, {"correlation": 5, "stream": 7, "device": 0}]
    end["args"] = [1]
    assert loads(text([begin, end])).args(0) == {"cbid": 1, "a": [1]}


def test_what_has_no_partner_is_said():
    outer, inner = x("outer", 10, 50), x("inner", 20, 10)
    begin, end = pair(outer)
    lost = [begin, pair(inner)[0], end, x("last", 80, 15)]
    found = trace(*lost)
    assert found.duration.tolist() == [50_000, 40_000, 15_000]
    (said,) = found.findings
    assert said == f"1 begin event (phase B) has no end event: it was ended with {AROUND}"
    found = trace(begin, pair(inner)[0], x("last", 80, 15), x("other thread", 500, 1, tid=2))
    assert found.duration.tolist() == [85_000, 75_000, 15_000, 1000]
    assert found.findings[0].startswith("2 begin events (phase B) have no end event: each was ended with the event ")
    found = trace(pair(inner)[1], begin, end, end)
    assert found.duration.tolist() == [50_000]
    assert found.findings == ("2 end events (phase E) have no begin event and were ignored",)
    found = trace({**begin, "ts": "soon"}, x("op", 1, 1), {**end, "ts": None})
    assert found.findings == ("2 events without a valid timestamp were skipped",)


def test_an_end_that_lies_before_its_beginning_is_said():
    begin, end = pair(x("op", 10, 5), named=False)
    found = trace({**begin, "ts": 20}, end)
    assert found.duration.tolist() == [0]
    assert found.findings == ("1 end event (phase E) lies before its begin event: its duration was read as 0",)


def test_an_end_years_later_is_no_end():
    begin, end = pair(x("op", 10, 5))
    found = trace(begin, {**end, "ts": 10**15})
    assert found.duration.tolist() == [0]
    assert found.findings == ("1 complete event has no duration, which was read as 0",)


def test_a_damaged_file_keeps_the_pairs_of_its_own_order():
    # Empty events inside another, whose ends are without a name: in the order of time, each could end the outer one.
    events = [x("empty", 10, 0), x("empty", 20, 0), x("outer", 1, 50), x("cut", 60, 5)]
    found = trace(*in_place(events, named=False)[:-1])
    assert found.duration.tolist() == [0, 0, 50_000, 0]
    assert len(found.findings) == 1


def test_async_events_stay_ignored():
    found = trace(step(1, 0, 5), {"ph": "b", "id": 1, "name": "a", "ts": 1}, {"ph": "e", "id": 1, "name": "a", "ts": 2})
    assert len(found) == 1
    assert found.findings == ("1 event of phase 'b' was ignored", "1 event of phase 'e' was ignored")
    assert len(trace(memory(1, 1), *pair(x("op", 1, 1)))) == 1


def test_many_that_do_not_pair_do_not_take_forever():
    begin, end = pair(x("op", 1, 1))
    found = trace(*[begin] * 20_000, *[{**end, "name": "other"}] * 20_000)
    assert [said.split()[0] for said in found.findings] == ["20,000", "20,000"]
