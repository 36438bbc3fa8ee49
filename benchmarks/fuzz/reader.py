"""Does the reader of traces hold against any input: no crash, no hang, no flood of memory?

Every input must become a `Trace` or a `TraceError` of one line, within limits of time and memory; a trace must be
consistent, and one without findings must not depend on the slices in which it was read. The seeds are our own
recordings and generated traces. With atheris installed the run is guided by coverage, else inputs are mutated at
random. An input that breaks a rule is saved, with the command that repeats it.

    python benchmarks/fuzz/reader.py --minutes 10
    python benchmarks/fuzz/reader.py --minutes 1 --seed 7
    python benchmarks/fuzz/reader.py --input crash-1a2b3c4d.bin
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import json
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pytest_perfdl.model.errors import TraceError  # noqa: E402 (the path comes first)
from pytest_perfdl.trace import Event, Trace, loads, write  # noqa: E402

MEMORY_BYTES = 3 * 2**30
SECONDS_PER_INPUT = 20
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


def check(data: bytes, slice_bytes: int) -> str:
    """Read one input and check what came of it; how it ended, for the count.

    Raises
    ------
    RuleError, Exception
        When a rule is broken, or the reader crashed.
    """
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
        if field.name in ("memory", "counters"):
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


def seeds(draw: random.Random) -> list[bytes]:
    """Recordings cut to a length that mutates fast, and generated traces of every kind of event."""
    found = []
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


@contextmanager
def bounded() -> Iterator[None]:
    """Interrupt what takes too long."""

    def late(*_: object) -> None:
        raise RuleError(f"over {SECONDS_PER_INPUT} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_INPUT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def save(data: bytes, slice_bytes: int, folder: Path) -> Path:
    """Keep an input that broke a rule."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"crash-{slice_bytes}-{hashlib.sha256(data).hexdigest()[:8]}.bin"
    path.write_bytes(data)
    return path


def run_mutations(minutes: float, seed: int, folder: Path) -> int:
    """Mutate seeds at random until the time is over; the number of inputs that broke a rule."""
    draw = random.Random(seed)
    corpus = seeds(draw)
    outcomes: Counter[str] = Counter()
    crashes: set[str] = set()
    slowest = (0.0, b"", 0)
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        data = mutate(draw.choice(corpus), draw, corpus)
        if draw.random() < 0.05:
            data = gzip.compress(data, 1)
        slice_bytes = draw.choice(SLICES)
        began = time.perf_counter()
        try:
            with bounded():
                outcome = check(data, slice_bytes)
        except Exception as error:
            outcome = "broke a rule"
            where = repr(error)[:80]
            if where not in crashes:
                crashes.add(where)
                traceback.print_exc()
                print(
                    f"seed {seed}, input {outcomes.total()}, slices of {slice_bytes}: {save(data, slice_bytes, folder)}"
                )
        outcomes[outcome] += 1
        slowest = max(slowest, (time.perf_counter() - began, data, slice_bytes))
        if outcome == "read with findings" and len(corpus) < 2000 and draw.random() < 0.02:
            corpus.append(data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"seed {seed}: {outcomes.total()} inputs, {dict(outcomes)}, peak {peak:.0f} MB")
    print(f"slowest {slowest[0]:.2f} s: {len(slowest[1])} bytes in slices of {slowest[2]}")
    return outcomes["broke a rule"]


def run_guided(minutes: float, seed: int, folder: Path) -> None:
    """Let atheris look for inputs; it prints its own account and ends the process."""
    import atheris

    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(random.Random(seed))):
        (corpus / f"seed-{number}").write_bytes(data)
    dictionary = folder / "tokens.dict"
    short = [token for token in TOKENS if len(token) <= 64]
    dictionary.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in token) + '"\n' for token in short))

    def one(data: bytes) -> None:
        slice_bytes = SLICES[len(data) % len(SLICES)]
        try:
            check(data, slice_bytes)
        except Exception:
            print(f"seed {seed}, slices of {slice_bytes}: {save(data, slice_bytes, folder)}")
            raise

    atheris.instrument_all()
    limits = [f"-max_total_time={int(60 * minutes)}", f"-timeout={SECONDS_PER_INPUT}", f"-max_len={LONGEST}"]
    limits += [f"-rss_limit_mb={MEMORY_BYTES >> 20}", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *limits, f"-seed={seed}", f"-dict={dictionary}", str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    """Entry point; the exit status is 1 if an input broke a rule."""
    parser = argparse.ArgumentParser(description="Fuzz the reader of traces.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--unguided", action="store_true", help="mutate at random though atheris is installed")
    parser.add_argument("--input", type=Path, help="read a saved input once more")
    parser.add_argument("--folder", type=Path, default=Path("fuzz-reader"), help="where inputs that break a rule go")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    if options.input is not None:
        data = options.input.read_bytes()
        for slice_bytes in SLICES:
            print(f"slices of {slice_bytes}: {check(data, slice_bytes)}")
        return 0
    if importlib.util.find_spec("atheris") is not None and not options.unguided:
        run_guided(options.minutes, seed, options.folder)
        return 0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    return 1 if run_mutations(options.minutes, seed, options.folder) else 0


if __name__ == "__main__":
    raise SystemExit(main())
