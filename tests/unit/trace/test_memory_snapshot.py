"""Snapshots of the device allocator: what is read of each version, and what is refused, in one line and unexecuted."""

import gzip
import math
import os
import pickle
import struct
import sys

import pytest

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace.memory_snapshot import Action, Frame, read_snapshot

MODEL = {"filename": "/home/me/model.py", "line": 41, "name": "forward"}
TRAIN = {"filename": "/home/me/train.py", "line": 7, "name": "main"}


def block(size, **fields):
    return {"size": size, "state": "active_allocated", **fields}


def segment(*blocks, address=4096, total=2**20, **fields):
    return {"device": 0, "address": address, "total_size": total, "stream": 0, "blocks": list(blocks), **fields}


def event(action, address, size, **fields):
    return {"action": action, "addr": address, "size": size, "stream": 0, **fields}


def snapshot(*segments, traces=()):
    return {"segments": list(segments), "device_traces": list(traces)}


def read(folder, data, **options):
    path = folder / "snapshot.pickle"
    path.write_bytes(data if isinstance(data, bytes) else pickle.dumps(data))
    return read_snapshot(path, **options)


def refusal(folder, data, **options):
    with pytest.raises(TraceError) as caught:
        read(folder, data, **options)
    text = str(caught.value)
    assert text.isprintable()
    assert "snapshot.pickle" in text
    assert "Traceback" not in text
    assert "the process that reads the file failed" not in text
    assert caught.value.__cause__ is None
    return text


# What is read.


def test_events_blocks_and_stacks_become_columns(tmp_path):
    frames = [MODEL, TRAIN]
    found = read(
        tmp_path,
        snapshot(
            segment(
                block(1024, address=4096, requested_size=1000, frames=frames),
                {"size": 512, "address": 5120, "requested_size": 0, "state": "inactive", "frames": []},
                block(512, address=5632, requested_size=4, frames=[]),
            ),
            traces=[
                [
                    event("segment_map", 4096, 2**20, time_us=10, frames=frames),
                    event("alloc", 4096, 1000, time_us=11, frames=[dict(MODEL), dict(TRAIN)]),
                    event("snapshot", 0, 0, time_us=12, frames=[]),
                    event("free_requested", 9000, 3, time_us=13, frames=[TRAIN]),
                    event("free_completed", 9000, 3, time_us=14),
                    {"action": "oom", "device_free": 77, "size": 2**40, "stream": 0, "time_us": 15, "frames": []},
                ]
            ],
        ),
    )
    (device,) = found.devices
    assert found.frames == (Frame("/home/me/model.py", 41, "forward"), Frame("/home/me/train.py", 7, "main"))
    assert found.stacks == ((0, 1), (1,))
    assert (device.index, device.reserved_bytes) == (0, 2**20)
    assert device.actions.tolist() == [
        Action.SEGMENT_ALLOC,
        Action.ALLOC,
        Action.FREE_REQUESTED,
        Action.FREE_COMPLETED,
        Action.OOM,
    ]
    assert device.addresses.tolist() == [4096, 4096, 9000, 9000, 77]
    assert device.sizes.tolist() == [2**20, 1000, 3, 3, 2**40]
    assert device.times_us.tolist() == [10, 11, 13, 14, 15]
    assert device.stacks.tolist() == [0, 0, 1, -1, -1]
    assert device.block_addresses.tolist() == [4096, 5632]
    assert device.block_sizes.tolist() == [1024, 512]
    assert device.block_requested.tolist() == [1000, 4]
    assert device.block_stacks.tolist() == [0, -1]


def test_early_versions(tmp_path):
    """Blocks without address, with their history in place of frames; segments without device; a bare list of them."""
    history = [{"addr": 4096, "real_size": 1000, "frames": [MODEL]}, {"addr": 4096, "real_size": 24}]
    old = segment({"size": 512, "state": "inactive"}, block(1024, history=history), block(512), address=4096)
    del old["device"]
    (device,) = read(tmp_path, [old]).devices
    assert device.index == 0
    assert device.block_addresses.tolist() == [4608, 5632]
    assert device.block_requested.tolist() == [1000, -1]
    assert device.block_stacks.tolist() == [0, -1]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol(tmp_path, protocol):
    data = snapshot(segment(block(512, frames=[MODEL]), device=3), traces=[[], [event("alloc", 1, 2)]])
    found = read(tmp_path, pickle.dumps(data, protocol))
    assert [device.index for device in found.devices] == [1, 3]


def test_nothing_is_nothing(tmp_path):
    assert read(tmp_path, snapshot(traces=[[], []])).devices == ()


def test_an_object_that_holds_itself_is_read_once(tmp_path):
    own = segment(total=7) | {"size": 512, "state": "active_allocated"}
    own["blocks"].append(own)
    (device,) = read(tmp_path, [own]).devices
    assert (device.reserved_bytes, device.block_sizes.tolist()) == (7, [512])


def test_lines_that_are_not_known_and_odd_names(tmp_path):
    odd = {"filename": "a\x1b[2J\ud800.py", "line": -1, "name": "f" * 5000}
    (frame,) = read(tmp_path, snapshot(segment(block(512, frames=[odd])))).frames
    assert frame == Frame("a\\x1b[2J\\ud800.py", 0, "f" * 1000)


def test_modules_of_the_current_folder_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "copyreg.py").write_text("raise SystemExit(3)")
    (tmp_path / "orjson.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path, snapshot(segment(block(512)))).devices


# What is refused.

SYSTEM = b"cos\nsystem\n"
HUGE = struct.pack("<Q", 2**60)
KEY = b"\x8c\x08segments"
LAUGHS = (
    # 3,000 times the same segment, which has 3,000 times the same block.
    b"\x80\x04}" + KEY + b"](}(\x8c\x07addressK\x01\x8c\ntotal_sizeK\x01\x8c\x06blocks]("
    b"}(\x8c\x04sizeK\x01\x8c\x05state\x8c\x08inactiveu\x94" + b"h\x00" * 3000 + b"eu\x94" + b"h\x01" * 3000 + b"es."
)


def code(command: bytes):
    """Pickles that would run a command, and others that would look something up or call it."""
    line, short = b"(S'" + command + b"'\n", b"\x8c" + bytes([len(command)]) + command
    return {
        "reduce": SYSTEM + line + b"tR.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + short + b"\x85R.",
        "inst": line + b"ios\nsystem\n.",
        "obj": b"(" + SYSTEM + line[1:] + b"o.",
        "within a snapshot": b"\x80\x04}" + KEY + b"](" + SYSTEM + line + b"tRes.",
        "a name that moves the cursor": b"c\x1b[2Jos\nsystem\n" + line + b"tR.",
        "newobj": SYSTEM + line + b"t\x81.",
        "newobj_ex": b"\x80\x04" + SYSTEM + line + b"t}\x92.",
        "a harmless class": b"ccollections\nOrderedDict\n)R.",
        "ext1": b"\x80\x02\x82\x01)R.",
        "ext2": b"\x80\x02\x83\x01\x01)R.",
        "ext4": b"\x80\x02\x84\x01\x01\x01\x01)R.",
        "persid": b"Pobject\n.",
        "binpersid": b"\x80\x02K\x01Q.",
        "reduce of a string": b"\x80\x04\x8c\x01a)R.",
        "obj of a dictionary": b"\x80\x02(}o.",
        "newobj of a dictionary": b"\x80\x02})\x81.",
        "build": b"\x80\x04}}\x8c\x01a\x8c\x01bsb.",
        "next buffer": b"\x80\x05\x97.",
    }


BROKEN = {
    "nothing": b"",
    "text": b'{"segments": []}',
    "compressed": gzip.compress(pickle.dumps(snapshot())),
    "noise": bytes(range(255, 0, -1)),
    "no stop": pickle.dumps(snapshot())[:-1],
    "cut short": pickle.dumps(snapshot(segment(block(512))))[:-40],
    "protocol 99": b"\x80\x63}.",
    "empty stack": b"\x80\x04.",
    "no mark": b"\x80\x04}u.",
    "memo that is not there": b"\x80\x04h\x07.",
}
BOMBS = {
    "long_binput": b"\x80\x04}r" + struct.pack("<I", 2**31) + b".",
    "long_binput within the limit of 32 bits": b"\x80\x04}r" + struct.pack("<I", 2**28) + b".",
    "put": b"}p99999999999999\n.",
    "binunicode8": b"\x80\x04\x8d" + HUGE,
    "binbytes8": b"\x80\x04\x8e" + HUGE,
    "bytearray8": b"\x80\x05\x96" + HUGE,
    "frame": b"\x80\x04\x95" + HUGE + b"}.",
    "long4": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1),
    "long4 of negative length": b"\x80\x02\x8b" + struct.pack("<i", -1) + b".",
    "many digits": b"I" + b"9" * 200_000 + b"\n.",
    "deep lists": b"\x80\x04" + b"]" * 10**6 + b"a" * (10**6 - 1) + b".",
    "deep tuples that are a key": b"\x80\x04})" + b"\x85" * 2 * 10**6 + b"K\x01s.",
    "a list of itself": b"\x80\x04]\x94h\x00a.",
    "a dictionary of itself": b"\x80\x04}\x94" + KEY + b"h\x00s.",
    "a billion laughs": LAUGHS,
}


def marking(folder):
    """A command that leaves a folder there."""
    return b"mkdir " + os.fsencode(folder / "executed")


@pytest.mark.parametrize("name", code(b""))
def test_nothing_is_executed(tmp_path, name):
    refusal(tmp_path, code(marking(tmp_path))[name])
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot.pickle"]


@pytest.mark.parametrize("name", ["reduce", "stack global", "inst", "obj", "within a snapshot"])
def test_it_would_be_executed(tmp_path, name):
    pickle.loads(code(marking(tmp_path))[name])
    assert (tmp_path / "executed").is_dir()


def test_what_is_asked_for_is_named(tmp_path):
    text = refusal(tmp_path, code(b"true")["a name that moves the cursor"])
    assert r"refers to \x1b[2Jos.system, but a snapshot contains only plain values" in text


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in BROKEN.items()])
def test_what_is_no_pickle(tmp_path, data):
    assert "pickle" in refusal(tmp_path, data).partition("snapshot.pickle")[2]


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in BOMBS.items()])
def test_small_files_that_would_become_large(tmp_path, data):
    refusal(tmp_path, data)


def test_a_bomb_meets_the_limit_of_memory(tmp_path):
    assert "needs more than 512 MiB of memory" in refusal(tmp_path, BOMBS["long_binput within the limit of 32 bits"])


def test_a_crash_is_told(tmp_path, monkeypatch):
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\nkill -s SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crashing))
    assert "the process that reads the snapshot was killed by SIGSEGV" in refusal(tmp_path, snapshot())


MALFORMED = {
    "a number": (7, "'segments' is missing"),
    "an empty dictionary": ({}, "'segments' is missing"),
    "no list of segments": ({"segments": {}}, "segments is not a list"),
    "a list of numbers": ([1], "segments[0] is not a dictionary"),
    "no list of traces": ({"segments": [], "device_traces": 5}, "device_traces is not a list"),
    "no list of events": ({"segments": [], "device_traces": [5]}, "device_traces[0] is not a list"),
    "no blocks": ([segment() | {"blocks": None}], "segments[0].blocks is not a list"),
    "no address": ([segment(address=None)], "segments[0].address is not an integer"),
    "NaN": ([segment(total=math.nan)], "segments[0].total_size is not an integer from 0 to 2**62"),
    "true": ([segment(total=True)], "total_size is not an integer"),
    "a text": ([segment(total="9")], "total_size is not an integer"),
    "negative": ([segment(block(-512))], "segments[0].blocks[0].size is not an integer"),
    "a huge number": ([segment(block(1 << 4000))], "segments[0].blocks[0].size is not an integer"),
    "a far device": ([segment(device=2**40)], "device number is 1024 or above"),
    "a state": ([segment({"size": 1, "state": 4})], "segments[0].blocks[0].state is not a string"),
    "frames": ([segment(block(1, frames="abc"))], "frames is not a list"),
    "a frame": ([segment(block(1, frames=[{"filename": "a.py"}]))], "has no file name, line or name"),
    "a history": ([segment(block(1, history=[3]))], "history[0] is not a dictionary"),
    "an action": (snapshot(traces=[[event(["alloc"], 1, 1)]]), "device_traces[0][0].action is not a string"),
    "an event": (snapshot(traces=[[None]]), "device_traces[0][0].action is not a string"),
    "a negative size": (snapshot(traces=[[event("alloc", 1, -1)]]), "device_traces[0][0].size is not an integer"),
    "an event's address": (snapshot(traces=[[event("alloc", 1.5, 1)]]), "device_traces[0][0].addr is not an integer"),
    "a far time": (snapshot(traces=[[event("alloc", 1, 1, time_us=2**60)]]), "time_us is not an integer from 0 to"),
    "a sum": (snapshot(traces=[[event("alloc", 1, 2**61)] * 3]), "is too large"),
}


@pytest.mark.long
def test_what_is_no_snapshot_says_where(tmp_path):
    for name, (data, expected) in MALFORMED.items():
        assert expected in refusal(tmp_path, data), name


def test_files_beyond_the_limit(tmp_path):
    text = refusal(tmp_path, b"\0" * 2049, limit_bytes=2048)
    assert "is larger than 2 KiB" in text
    assert "read_snapshot(path, limit_bytes=...)" in text


def test_reading_that_takes_too_long(tmp_path):
    assert "takes longer than 0.001 s" in refusal(tmp_path, snapshot(), seconds=0.001)


def test_what_is_no_file(tmp_path):
    with pytest.raises(TraceError, match=r"absent\.pickle cannot be read: No such file"):
        read_snapshot(tmp_path / "absent.pickle")
    with pytest.raises(TraceError, match=r"two\\nlines cannot be read: No such file"):
        read_snapshot(tmp_path / "two\nlines")
    with pytest.raises(TraceError, match=r"is not a regular file"):
        read_snapshot(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match=r"is not a regular file"):
        read_snapshot(tmp_path / "pipe")
