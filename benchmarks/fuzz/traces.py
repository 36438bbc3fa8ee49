"""Traces, damaged, and the reader of traces.

Every input must become a `Trace` or a `TraceError` of one line; a trace must be consistent, and one without findings
must not depend on the slices in which it was read. The seeds are our own recordings and generated traces.
"""

from __future__ import annotations

import functools
import gzip
import json
import random
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace import Event, Trace, loads, write

LIMIT_BYTES = 64 * 2**20
LONGEST = 2**20
SLICES = (1, 3, 17, 64, 300, 5000, 2**20)

TOKENS = [
    *(b"NaN", b"-Infinity", b"inf", b"-inf", b"null", b"true", b"1e400", b"1e99999999", b"-0.0", b"9" * 400),
    *(b"18446744073709551616", b"-9223372036854775809", b"4611686018427387904000", b"1712195495519689.047"),
    *(b",", b",,", b"]", b"[", b"{", b"}", b'"', b":", b"\\", b'\\"', b"\\ud800", b"\\u12", b"\\U", b"\x00", b"\x1f"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\r\n", b"C:\\Users\\", b'"},{"ph":"X"'),
    *(b'},{"ph":', b'},\n{"ph":"X","ts":1,"dur":2}', b'],"traceEvents":[', b'"traceEvents":[', b'"args":{"a":[{"ph":'),
    *(b"[" * 3000, b'{"a":' * 3000, b" " * 5000, b'"' * 500, b"\\" * 501, b"{}," * 500, b'},{"ph"' * 100),
    *(b'"ph":"C","args":{"x":1}', b'"ph":"M","name":"thread_name"', b'"cat":"Operator"', b'"baseTimeNanoseconds":1e5'),
    *(b'"name":"[memory]","ph":"i"', b"\x1f\x8b\x08\x00", b'"correlation":"x"', b'"tid":"stream 7"', b'"pid":"Spans"'),
]


class RuleError(Exception):
    """An input broke a rule that is no crash."""


def check(data: bytes) -> str:
    """Read one input, in slices whose size depends on it, and check what came of it; how it ended, for the count.

    Raises
    ------
    RuleError, Exception
        When a rule is broken, or the reader crashed.
    """
    slice_bytes = SLICES[len(data) % len(SLICES)]
    try:
        trace = loads(data, "input", limit_bytes=LIMIT_BYTES, slice_bytes=slice_bytes, spill_bytes=2**16)
    except TraceError as error:
        if "\n" in str(error) or not str(error):
            raise RuleError(f"the refusal is not one line: {str(error)!r}") from error
        return "refused"
    _check_consistent(trace)
    if trace.findings:
        return "read with findings"
    _check_equal(trace, loads(data, "input", limit_bytes=LIMIT_BYTES))
    return "read"


def _check_consistent(trace: Trace) -> None:
    columns = (trace.start, trace.duration, trace.name, trace.category, trace.pid, trace.tid, trace.correlation)
    if {len(column) for column in columns} != {len(trace)} or len(trace.raw_args) != len(trace):
        raise RuleError("the columns differ in length")
    if len(trace) and (trace.duration.min() < 0 or trace.name.max() >= len(trace.names)):
        raise RuleError("a column has a value that cannot be")
    if any("\n" in finding for finding in trace.findings):
        raise RuleError(f"a finding is not one line: {trace.findings}")
    for row in range(min(len(trace), 50)):
        trace.args(row)
    trace.external_ids(np.arange(len(trace)))
    trace.device_rows()
    for number in {*trace.pid.tolist(), *trace.tid.tolist()}:
        trace.label(number)


def _check_equal(one: Trace, other: Trace) -> None:
    for field in fields(Trace):
        if not field.init:
            continue  # what a trace remembers of answers
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name == "memory":
            same = all(_same(getattr(left, part.name), getattr(right, part.name)) for part in fields(left))
        elif field.name == "raw_args":
            same = list(left) == list(right)
        else:
            same = _same(left, right)
        if not same:
            raise RuleError(f"{field.name} depends on the slices")


def _same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right)
    return left == right


@functools.cache
def seeds() -> list[bytes]:
    """Recordings cut to a length that mutates fast, and generated traces of every kind of event."""
    found: list[bytes] = []
    draw = random.Random(0)
    for path in sorted((ROOT / "tests" / "unit" / "trace" / "data").glob("*.json.gz")):
        found.append(path.read_bytes())
        text = json.loads(gzip.decompress(found[-1]))
        for count in (1, 5, 40):
            start = draw.randrange(max(1, len(text["traceEvents"]) - count))
            short = {**text, "traceEvents": text["traceEvents"][start : start + count]}
            found.append(json.dumps(short, indent=draw.choice((None, 2))).encode())
    events = [
        Event("X", f"op {number}", 1, number % 3, 100 * number, 50, "cpu_op", {"External id": number, "a": [{"ph": 1}]})
        for number in range(20)
    ]
    events += [Event("C", "counter", 1, 1, number, args={"v": number}) for number in range(3)]
    plain = write(None, events, {"schemaVersion": 1})
    found += [plain, gzip.compress(plain), b"\xef\xbb\xbf" + plain, b"[" + plain.split(b"[\n", 1)[1][:-2]]
    return found


def mutate(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    """Change a few places of an input."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        size = len(data)
        place = draw.randrange(size + 1)
        length = min(size - place, draw.choice((1, 1, 2, 5, 30, 200)))
        kind = draw.randrange(8)
        if kind == 0 and size:
            place = min(place, size - 1)
            data = data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
        elif kind == 1:
            data = data[:place] + data[place + length :]
        elif kind == 2:
            data = data[:place] + data[place : place + length] * draw.choice((2, 3, 50)) + data[place + length :]
        elif kind in (3, 4):
            data = data[:place] + draw.choice(TOKENS) + data[place + draw.choice((0, length)) :]
        elif kind == 5:
            data = data[:place]
        elif kind == 6:
            other = draw.choice(others)
            start = draw.randrange(len(other))
            data = data[:place] + other[start : start + draw.choice((5, 100, 3000))] + data[place:]
        else:
            token = draw.choice((b'"', b",", b":", b"}", b"]", b"{", b"["))
            start = data.find(token, place)
            data = data[:start] + draw.choice(TOKENS) + data[start + 1 :] if start >= 0 else data
    return data[:LONGEST]


def case(draw: random.Random) -> bytes:
    """A seed, mutated."""
    corpus = seeds()
    data = mutate(draw.choice(corpus), draw, corpus)
    return gzip.compress(data, 1) if draw.random() < 0.05 else data
