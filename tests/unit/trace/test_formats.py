"""Files that are something else than a trace: each is called by its name, whole, in gzip, and cut anywhere."""

import gzip
import io
import json
import pickle
import random
import sqlite3
import tarfile
import zipfile

import pytest

from pytest_perfdl.model.errors import NotATrace, TraceError
from pytest_perfdl.trace import loads
from pytest_perfdl.trace.reader import nothing_in, refusal_of
from unit.trace.chrome import memory, step, text, trace, x

RECORD = "record one with torch.profiler"
TREE = {
    "children": [{"children": [], "frame": {"name": "mm", "type": "function"}, "metrics": {"time (ns)": 9}}],
    "frame": {"name": "ROOT", "type": "function"},
    "metrics": {"count": 0, "time (ns)": 0},
}
"""As `TreeData` of triton's proton writes it; a list ends with the devices."""
POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""
DUMP = "torch.cuda.memory._dump_snapshot() for `perfdl diff --memory`"
NONE = "has no PyTorch categories"
OLD = "an old export of autograd's profiler; use export_chrome_trace of torch.profiler.profile"
NODE = {"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1, "inputs": {"values": []}}


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("trace.json", text([x("op", 1, 1)]))
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("trace.json")
        archive.addfile(entry, io.BytesIO())
    return buffer.getvalue()


def database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table StringIds (id integer, value text)")
    connection.execute("insert into StringIds values (1, 'a')")
    connection.commit()
    return connection.serialize()


def snapshot() -> dict:
    return {"segments": [], "device_traces": [[]], "allocator_settings": {}}


FORMATS = {
    "zip": (zipped(), "a zip archive, not a trace: unpack it first"),
    "tar": (tarred(), "a tar archive, not a trace: unpack it first"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00", "zstd-compressed, not a trace: unpack it first"),
    "bzip2": (b"BZh91AY", "bzip2-compressed, not a trace: unpack it first"),
    "xz": (b"\xfd7zXZ\x00\x00", "xz-compressed, not a trace: unpack it first"),
    "utf-16": (
        text([x("op", 1, 1)]).decode().encode("utf-16"),
        "UTF-16 text, not a trace: convert it to UTF-8",
    ),
    "sqlite": (database(), f"an SQLite database (exported by nsys?), not a trace: {RECORD}"),
    "pickle": (
        pickle.dumps(snapshot()),
        "a Python pickle, not a trace: compare memory snapshots with `perfdl diff --memory`",
    ),
    "lfs": (
        POINTER,
        "a Git LFS pointer, not a trace: fetch the file with `git lfs pull --include=x.json`",
    ),
    "chakra": (
        json.dumps(
            {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "t", "start_ts": 1, "nodes": [NODE] * 3, "finish_ts": 2}
        ).encode(),
        "a PyTorch execution trace (Chakra), not a trace: it has no durations; use the trace of torch.profiler",
    ),
    "proton": (
        json.dumps([TREE, {"CUDA": {"0": {"arch": "90"}}}], indent=4).encode(),
        f"a profile of Proton (hatchet), not a trace: {RECORD}",
    ),
    "hatchet": (
        json.dumps([{"frame": TREE["frame"], "metrics": TREE["metrics"]}]).encode(),
        f"a profile of Proton (hatchet), not a trace: {RECORD}",
    ),
    "speedscope": (
        json.dumps(
            {
                "$schema": "https://www.speedscope.app/file-format-schema.json",
                "shared": {"frames": [{"name": "a"}]},
                "profiles": [{"type": "sampled", "name": "p", "samples": [[0]], "weights": [1]}],
            }
        ).encode(),
        f"a speedscope profile, not a trace: {RECORD}",
    ),
    "pprof": (b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04\x12\x00", f"a pprof profile, not a trace: {RECORD}"),
    "cpuprofile": (
        json.dumps({"nodes": [{"id": 1}], "startTime": 1, "endTime": 9, "samples": [1], "timeDeltas": [8]}).encode(),
        f"a CPU profile of V8 (.cpuprofile), not a trace: {RECORD}",
    ),
    "timeline": (
        json.dumps([[1, 2, 3], [[0, 1], [0, 2], [0, 3]]]).encode(),
        "a memory timeline of torch.profiler (export_memory_timeline), not a trace: use export_chrome_trace",
    ),
    "memory json": (
        json.dumps(snapshot()).encode(),
        f"a PyTorch memory snapshot in JSON, not a trace: write a pickle with {DUMP}",
    ),
    "html": (
        b"\n<!-- x -->\n<!DOCTYPE html><html><body>Sign in</body></html>",
        "an HTML page, not a trace: download the file itself (was a login needed?)",
    ),
    "xml": (
        b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
        "an XML document, not a trace: download the file itself (is it an error message of the server?)",
    ),
    "run": (
        b'{\n "schema": 1,\n "date": "d",\n "tests": [\n]}',
        "a run.json file of pytest --perf, not a trace: compare it with `perfdl diff`",
    ),
    "baseline": (
        b'{\n "calls": [\n  {"metrics": {}}\n ],\n "schema": 1,\n "test": "t"\n}\n',
        "a baseline of pytest-perfdl, not a trace: compare it with `perfdl diff`",
    ),
    "binary": (b"\x0a\x8b\x01\x50\x03\x00\x00", "binary data, not a trace"),
}


def refusal(data: bytes, **options) -> TraceError:
    with pytest.raises(TraceError) as caught:
        loads(data, "x.json", **options)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", FORMATS)
def test_other_formats_are_named(kind, packed):
    data, said = FORMATS[kind]
    found = refusal(gzip.compress(data) if packed else data)
    assert isinstance(found, NotATrace)
    assert str(found) == f"x.json is {said}"
    assert str(found).startswith(f"x.json is {found.what}, not a trace")
    assert str(refusal(data, slice_bytes=1)) == str(found)


def test_a_file_is_named_by_its_content(tmp_path):
    path = tmp_path / "my trace.json"
    path.write_bytes(FORMATS["lfs"][0])
    assert str(refusal_of(path)).endswith("fetch the file with `git lfs pull --include='my trace.json'`")
    path.write_bytes(gzip.compress(FORMATS["chakra"][0]))
    assert refusal_of(path).what == "a PyTorch execution trace (Chakra)"
    path.write_bytes(text([step(1, 0, 1)], distributedInfo={"pg_config": ["x" * 30] * 5000}))
    assert refusal_of(path) is None
    assert str(refusal_of(tmp_path / "absent")) == f"{tmp_path / 'absent'} cannot be read: No such file or directory"


def test_a_damaged_file_of_another_format_is_named_too():
    data = FORMATS["chakra"][0].replace(b'"inputs": {"values": []}', b'"inputs": {"values": ]}')
    assert refusal(data).what == "a PyTorch execution trace (Chakra)"
    packed = gzip.compress(b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [' + b"{}," * 9000, 0)
    assert refusal(packed[:-99]).what == "a PyTorch execution trace (Chakra)"


@pytest.mark.parametrize("kind", FORMATS)
def test_cut_anywhere_there_is_one_line(kind):
    chance = random.Random(kind)
    data = FORMATS[kind][0]
    for whole in (data, gzip.compress(data)):
        for _ in range(25):
            cut = whole[: chance.randrange(len(whole))]
            assert str(refusal(cut)).startswith("x.json is "), cut


def test_an_object_of_something_else_is_told_by_its_keys():
    many = json.dumps({"message": "Not Found", "status\x1b": 2, "b": 3, "c": 4, "d": 5, "e": 6}).encode()
    missing = "x.json is not a Chrome trace: traceEvents is missing"
    assert str(refusal(many)) == f"{missing}, its keys are message, status\\x1b, b, c, d, ..."
    assert str(refusal(b"{}")) == f"{missing}, it is empty"


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "has no complete events: there is nothing to analyze"),
        (
            [{"ph": "s", "id": 1, "name": "f", "cat": "ac2g", "pid": 1, "tid": 1, "ts": 1}],
            "has no complete events: there is nothing to analyze",
        ),
        ([memory(1, 8), memory(2, -8)], "has only 2 memory events: compare its memory with `perfdl diff --memory`"),
        (
            [*[x("a", 1, 1, cat="v8")] * 2, *[x("b", 2, 1, cat="blink,net")] * 3, x("c", 3, 1, cat="")],
            f"{NONE} among 6 events (categories: blink,net, v8): record it with torch.profiler",
        ),
        (
            [
                {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "/device:GPU:0"}},
                {"ph": "X", "name": "fusion", "pid": 3, "tid": 1, "ts": 1, "dur": 1, "args": {"hlo_op": "fusion"}},
            ],
            f"{NONE} among 1 event (no event has a category): a trace of XLA (JAX or TensorFlow), not of PyTorch",
        ),
        (
            [{"ph": "X", "name": "aten::mul", "pid": "CPU functions", "tid": 1, "ts": 1, "dur": 1, "args": {}}] * 2,
            f"{NONE} among 2 events (no event has a category): {OLD}",
        ),
        ([x("a", 1, 1, cat="Operator")], ""),
        ([x("a", 1, 1, cat="v8"), x("b", 1, 1)], ""),
    ],
    ids=["empty", "flows", "memory", "chrome", "xla", "autograd", "2021", "mixed"],
)
def test_what_has_nothing_to_analyze(events, said):
    assert nothing_in(trace(*events)) == said


def test_memory_events_are_enough_where_memory_is_analyzed():
    assert nothing_in(trace(memory(1, 8)), memory=True) == ""
    assert nothing_in(trace(), memory=True) != ""
