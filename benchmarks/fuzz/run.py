"""Do the readers of traces, run files, baselines and exemplar traces hold against any input?

Mutated files go to everything that reads them (`traces.py`, `damaged_files.py`), in child processes with little memory;
a case may take a second of processor time, a trace twenty. A traceback, a hang, a flood of memory, or a file written
elsewhere breaks a rule. An input that does is saved, with the command that repeats it.

    python benchmarks/fuzz/run.py traces --minutes 10
    python benchmarks/fuzz/run.py baselines exemplars --minutes 10 --seed 7
    python benchmarks/fuzz/run.py runs --input fuzz-files/runs-1a2b3c4d.bin
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KINDS = ("traces", "runs", "baselines", "exemplars")
MEMORY_BYTES = 2**30
"""Address space beyond what the process has when it has read valid files."""
CASES_PER_CHILD = 2000
SILENT_SECONDS = 120


class LateError(BaseException):
    """A case took too long; no `except Exception` swallows it."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Interrupt what takes more processor time."""

    def late(*_: object) -> None:
        raise LateError(f"over {seconds:g} s")

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@dataclass(frozen=True)
class Subject:
    """What makes cases of a kind, and what reads them."""

    valid: bytes
    case: Callable[[random.Random], bytes]
    check: Callable[[bytes], str]
    seconds: float = 1.0
    """For a case, of processor time: a busy machine makes no case slow."""


def subject(kind: str, folder: Path) -> Subject:
    """That of a kind, with files in a folder."""
    if kind == "traces":
        import traces

        return Subject(traces.seeds()[-1], traces.case, traces.check, 20.0)
    from damaged_files import Case, Place, case_of, check, valid_file

    place = Place(folder)
    place.prepare()
    return Subject(
        valid_file(kind, place, random.Random(0)),
        lambda draw: case_of(kind, place, draw).data,
        lambda data: check(place, Case(kind, data)),
    )


def child(kind: str, seed: int, seconds: float, folder: Path) -> None:
    """Run cases until the time is over; prints what came of them as JSON."""
    draw = random.Random(seed)
    outcomes: Counter[str] = Counter()
    broken: set[str] = set()
    slowest = 0.0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="perfdl-fuzz-") as scratch:
        of_kind = subject(kind, Path(scratch))
        if not of_kind.check(of_kind.valid).startswith("read"):
            raise SystemExit(f"the valid file of {kind} is refused")
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        while time.monotonic() < end and outcomes.total() < CASES_PER_CHILD:
            data = of_kind.case(draw)
            began = time.process_time()
            try:
                with bounded(of_kind.seconds):
                    outcomes[of_kind.check(data)] += 1
            except (Exception, LateError) as error:
                outcomes["broke a rule"] += 1
                frame = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{type(error).__name__} {Path(frame.filename).name}:{frame.lineno} {str(error)[:60]}"
                if where not in broken:
                    broken.add(where)
                    path = folder / f"{kind}-{hashlib.sha256(data).hexdigest()[:8]}.bin"
                    path.write_bytes(data)
                    print(f"{where}\n    python benchmarks/fuzz/run.py {kind} --input {path}", file=sys.stderr)
            slowest = max(slowest, time.process_time() - began)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"outcomes": outcomes, "slowest": slowest, "grown_mb": (after - before) / 1024}))


def run(kind: str, minutes: float, seed: int, folder: Path) -> int:
    """Children one after the other until the time is over; the number of cases that broke a rule."""
    folder.mkdir(parents=True, exist_ok=True)
    total: Counter[str] = Counter()
    slowest = grown = 0.0
    end = time.monotonic() + 60 * minutes
    number = 0
    while (left := end - time.monotonic()) > 1:
        words = [sys.executable, __file__, kind, "--child", "--seed", str(seed + number), "--seconds", str(left)]
        words += ["--folder", str(folder.resolve())]
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=left + SILENT_SECONDS, check=False)
        number += 1
        if done.returncode:
            print(f"{kind}: the child of seed {seed + number - 1} ended with {done.returncode}")
            total["broke a rule"] += 1
            continue
        told = json.loads(done.stdout.splitlines()[-1])
        total.update(told["outcomes"])
        slowest, grown = max(slowest, told["slowest"]), max(grown, told["grown_mb"])
    print(f"{kind}, seed {seed}: {total.total()} files in {number} processes, {dict(total)}")
    print(f"    slowest {slowest:.2f} s of processor time, at most {grown:.0f} MB more than for valid files")
    return total["broke a rule"]


def main() -> int:
    """Entry point; the exit status is 1 if a file broke a rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--minutes", type=float, default=10, help="of each kind")
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--input", type=Path, help="read a saved file once more")
    parser.add_argument("--folder", type=Path, default=Path("fuzz-files"), help="where files that break a rule go")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    if options.input is not None:
        with tempfile.TemporaryDirectory(prefix="perfdl-fuzz-") as scratch:
            data = options.input.read_bytes()
            print(subject(options.kinds[0], Path(scratch)).check(data))
        return 0
    if options.child:
        child(options.kinds[0], seed, options.seconds, options.folder)
        return 0
    broke = [run(kind, options.minutes, seed, options.folder) for kind in options.kinds]
    return 1 if any(broke) else 0


if __name__ == "__main__":
    raise SystemExit(main())
