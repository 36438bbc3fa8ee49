"""Writing: exact times, strict nesting, the same bytes for the same events."""

import gzip
import json
import random
import struct
from decimal import Decimal

import pytest

from pytest_perfdl.trace import Category, Event, compress, loads, read, write
from pytest_perfdl.trace.writer import write_stream
from unit.trace.chrome import each_recording, each_trace_file


def _complete(name, start, end, pid=0, tid=0):
    return Event("X", name, pid, tid, start_ns=start, duration_ns=end - start)


def assert_nests(data: bytes) -> None:
    """Check the rules of Perfetto's importer, on the file itself, by comparing all neighbors on the stack."""
    stacks: dict[tuple[int, int], list[Decimal]] = {}
    events = json.loads(data, parse_float=Decimal)["traceEvents"]
    for event in events:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert 0 <= event["pid"] < 2**32
        assert 0 <= event["tid"] < 2**32
    complete = [event for event in events if event["ph"] == "X"]
    for event in sorted(complete, key=lambda event: (event["ts"], -event["dur"])):
        stack = stacks.setdefault((event["pid"], event["tid"]), [])
        end = event["ts"] + event["dur"]
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        assert not stack or end <= stack[-1], f"{event['name']} overlaps its neighbor"
        stack.append(end)


def test_the_text_of_a_small_trace():
    data = write(
        None,
        [
            _complete("op", 1_234_567, 2_000_000, tid=5),
            Event.process_name(0, "host"),
            Event("i", "mark", 0, 5, start_ns=5, args={"z": 1, "a": [2.5]}),
            Event("s", "arrow", 0, 5, start_ns=1_234_567, category="link", flow=3),
            Event("f", "arrow", 0, 5, start_ns=1_300_000, category="link", flow=3),
            Event("C", "saved", 0, 5, start_ns=0, args={"ns": 7}),
            Event("X", "red", 1, 0, start_ns=-1, duration_ns=1001, category="kernel", color="terrible"),
        ],
        {"made by": "perfdl"},
    )
    assert data.decode() == (
        '{"displayTimeUnit":"ms","made by":"perfdl",\n"traceEvents":[\n'
        '{"args":{"name":"host"},"name":"process_name","ph":"M","pid":0,"tid":0},\n'
        '{"cat":"kernel","cname":"terrible","dur":1.001,"name":"red","ph":"X","pid":1,"tid":0,"ts":-0.001},\n'
        '{"args":{"ns":7},"name":"saved","ph":"C","pid":0,"tid":5,"ts":0.000},\n'
        '{"args":{"a":[2.5],"z":1},"name":"mark","ph":"i","pid":0,"s":"t","tid":5,"ts":0.005},\n'
        '{"dur":765.433,"name":"op","ph":"X","pid":0,"tid":5,"ts":1234.567},\n'
        '{"cat":"link","id":3,"name":"arrow","ph":"s","pid":0,"tid":5,"ts":1234.567},\n'
        '{"bp":"e","cat":"link","id":3,"name":"arrow","ph":"f","pid":0,"tid":5,"ts":1300.000}\n'
        "]}\n"
    )


def test_times_survive_to_the_nanosecond():
    starts = [0, 1, 999, 1000, 4_453_700_846_418_643, 1_712_195_495_519_689_047]
    written = write(None, [_complete(str(start), start, start + 1, tid=place) for place, start in enumerate(starts)])
    assert loads(written).start.tolist() == starts
    assert loads(written).duration.tolist() == [1] * len(starts)


def test_order_of_events_does_not_change_what_is_said_only_order_among_equals():
    events = [_complete("a", 0, 10), _complete("b", 2, 5), _complete("c", 7, 9)]
    assert write(None, events) == write(None, reversed(events)) == write(None, iter(events))


def test_overlapping_events_move_to_named_overflow_threads():
    events = [
        Event.thread_name(0, 7, "stream 7"),
        Event.thread_name(0, 8, "stream 8"),
        _complete("first", 0, 10, tid=7),
        _complete("second", 5, 15, tid=7),
        _complete("third", 8, 20, tid=7),
        _complete("inside second", 11, 14, tid=7),
        _complete("after", 20, 30, tid=7),
        _complete("own", 0, 5, tid=8),
    ]
    data = write(None, events)
    assert_nests(data)
    found = loads(data)
    assert len(found) == 6, "moved, never dropped"
    tids = dict(zip([found.name_of(row) for row in range(6)], found.tid.tolist(), strict=True))
    assert tids["first"] == tids["after"] == tids["inside second"] == 7
    assert tids["own"] == 8
    assert {tids["second"], tids["third"]} == {9, 10}
    assert found.thread_names[0, 9] == found.thread_names[0, 10] == "stream 7 (overflow)"


def test_an_unnamed_threads_overflow_is_named_after_its_number():
    found = loads(write(None, [_complete("a", 0, 10, tid=3), _complete("b", 5, 15, tid=3)]))
    assert found.thread_names == {(0, 4): "thread 3 (overflow)"}


def test_overflow_of_the_last_possible_thread_takes_the_lowest_free_number():
    last = 2**32 - 1
    events = [_complete("a", 0, 10, tid=last), _complete("b", 5, 15, tid=last), _complete("c", 0, 1, tid=0)]
    assert sorted(loads(write(None, events)).tid.tolist()) == [0, 1, last]


def test_touching_and_equal_and_empty_events_nest():
    events = [_complete(str(place), *bounds) for place, bounds in enumerate([(0, 5), (5, 9), (5, 9), (9, 9), (2, 2)])]
    data = write(None, events)
    assert_nests(data)
    assert set(loads(data).tid.tolist()) == {0}


def test_random_overlaps_all_survive_and_nest():
    draw = random.Random(3)
    events = []
    for number in range(400):
        start = draw.randrange(1000)
        events.append(_complete(str(number), start, start + draw.randrange(60), draw.randrange(2), draw.randrange(3)))
    data = write(None, events)
    assert_nests(data)
    found = loads(data)
    survivors = sorted(zip([found.name_of(r) for r in range(400)], found.start, found.duration, strict=True))
    assert survivors == sorted((event.name, event.start_ns, event.duration_ns) for event in events)


@pytest.mark.parametrize("number", [-1, 2**32, 1.0, "7", None])
@pytest.mark.parametrize("field", ["pid", "tid"])
def test_ids_that_viewers_would_garble_are_refused(field, number):
    event = Event("X", "op", **{"pid": 0, "tid": 0, field: number})
    which = "process" if field == "pid" else "thread"
    with pytest.raises(ValueError, match=f"event 'op' has {which} id"):
        write(None, [event])


def test_a_negative_duration_is_refused():
    with pytest.raises(ValueError, match="event 'op' has a negative duration, -1 ns"):
        write(None, [Event("X", "op", 0, 0, duration_ns=-1)])


def test_files_are_replaced_whole(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    data = write(path, [_complete("op", 0, 1)])
    assert path.read_bytes() == data
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]
    packed = tmp_path / "out.json.gz"
    assert write(str(packed), [_complete("op", 0, 1)]) == data
    assert gzip.decompress(packed.read_bytes()) == data
    assert read(packed).start.tolist() == [0]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    folder = tmp_path / "taken.json"
    (folder / "full").mkdir(parents=True)
    with pytest.raises(OSError):
        write(folder, [_complete("op", 0, 1)])
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken.json"]


def test_compressed_bytes_carry_neither_name_nor_time():
    data = b"the same bytes " * 1000
    packed = compress(data)
    assert packed == compress(data)
    assert gzip.decompress(packed) == data
    assert packed[:10] == b"\x1f\x8b\x08\x00" + struct.pack("<I", 0) + b"\x02\xff"
    assert gzip.decompress(compress(b"")) == b""


def _rewritten(found) -> bytes:
    """Every row of a trace as an event, its ids made small."""
    pids = {pid: number for number, pid in enumerate(dict.fromkeys(found.pid.tolist()))}
    tids = {tid: number for number, tid in enumerate(dict.fromkeys(found.tid.tolist()))}
    return write(
        None,
        [
            Event(
                "X",
                found.name_of(row),
                pids[int(found.pid[row])],
                tids[int(found.tid[row])],
                int(found.start[row]),
                int(found.duration[row]),
                found.categories[found.category[row]],
                found.args(row) or None,
            )
            for row in range(len(found))
        ],
    )


def _contents(found):
    return sorted(
        (
            int(found.start[row]),
            int(found.duration[row]),
            found.name_of(row),
            found.categories[found.category[row]],
            json.dumps(found.args(row), sort_keys=True),
        )
        for row in range(len(found))
    )


@each_recording
def test_a_recording_read_and_written_is_the_same_trace(path):
    found = read(path)
    data = _rewritten(found)
    assert_nests(data)
    assert _contents(loads(data)) == _contents(found)


@each_trace_file
def test_a_public_trace_read_and_written_is_the_same_trace(path):
    found = read(path)
    data = _rewritten(found)
    assert_nests(data)
    again = loads(data)
    assert sorted(again.start.tolist()) == sorted(found.start.tolist())
    assert again.duration.sum() == found.duration.sum()
    assert len(again.rows(Category.KERNEL)) == len(found.rows(Category.KERNEL))


@pytest.mark.parametrize("name", ["all.json", "all.json.gz"])
@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 10_000])
def test_what_is_written_as_it_comes_is_what_is_written_at_once(tmp_path, name, count):
    events = [Event.process_name(0, "host"), *(_complete(f"op {n}", n * 10, n * 10 + 5) for n in range(count))]
    path = tmp_path / name
    write_stream(path, iter(events), {"made by": "perfdl"})
    text = path.read_bytes()
    assert (gzip.decompress(text) if name.endswith(".gz") else text) == write(None, events, {"made by": "perfdl"})


def test_arguments_may_be_text_already():
    plain = write(None, [Event("X", "op", 0, 1, args={"a": 1})])
    assert write(None, [Event("X", "op", 0, 1, json_args=b'{"a":1}')]) == plain


def test_an_event_that_cannot_be_written_leaves_what_was_there(tmp_path):
    path = tmp_path / "all.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="negative duration"):
        write_stream(path, [_complete("a", 0, 5), _complete("b", 9, 5)], {})
    assert [one.name for one in tmp_path.iterdir()] == ["all.json"]
    assert path.read_text() == "old"
