"""A repository of benchmarks as pytest-benchmark runs them, whose times are known: 240 in 12 files.

Each benchmark waits for a time that is drawn anew in every call. What is drawn depends on the process, on the time of
the day (phases), and on nothing that pytest-perfdl could seed. The times of a slowed benchmark are multiplied.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

FILES, IN_FILE = 12, 20
NOISES = (0.03, 0.05, 0.08, 0.10, 0.15, 0.25, 0.40)
STALLED = "test_3.py::test_7"
"""Its calls stall now and then."""

_TIMES = '''"""How long a benchmark waits."""

import json
import math
import os
import random
import time
from pathlib import Path

SPEC = json.loads(Path(__file__).with_name("benchmarks.json").read_text())
DRAW = random.Random(int.from_bytes(os.urandom(8)))
PROCESS = {}


def wait(name, parameter=0):
    """Wait as the benchmark does in one call."""
    spec = SPEC[name]
    key = (os.getpid(), name, parameter)
    if key not in PROCESS:
        PROCESS[key] = DRAW.gauss(0, spec["noise"] / 3)
    ns = spec["ns"] * (1 + parameter) * math.exp(PROCESS[key] + DRAW.gauss(0, spec["noise"]))
    if spec["phase"] and time.time() % 40 < 15:
        ns *= 1 + spec["noise"]
    if spec["stalls"] and DRAW.random() < 1 / 50:
        ns = spec["ns"] * 166
    ns *= spec["slower"]
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass
'''
_HEAD = """import functools

import pytest
from times import wait


@pytest.fixture(scope="module")
def data():
    return list(range(1000))


@pytest.fixture(scope="module", params=["small", "large"])
def size(request):
    return request.param == "large"
"""
_PLAIN = """

def test_{0}(benchmark, data):
    benchmark(wait, "{1}")
    assert len(data) == 1000
"""
_PARAMETERS = """

@pytest.mark.parametrize("n", [0, 1])
def test_{0}(benchmark, n):
    benchmark(wait, "{1}", n)
"""
_PEDANTIC = """

def test_{0}(benchmark, data):
    benchmark.pedantic(wait, args=("{1}",), rounds=20, warmup_rounds=2)
"""
_SIZED = """

def test_{0}(benchmark, size):
    benchmark(functools.partial(wait, "{1}", int(size)))
"""
_SHAPES = ((_PLAIN, 1),) * 6 + ((_PARAMETERS, 2), (_PEDANTIC, 1), (_SIZED, 2))
"""Of the functions, each with the number of its tests."""


@dataclass(frozen=True)
class Benchmark:
    """What one test function waits for."""

    ns: int
    noise: float
    """Standard deviation of the logarithm of a call's time within a process; a third of it between processes."""
    phase: bool
    """Whether it is slower, by as much as its noise, in 15 of 40 seconds."""
    stalls: bool
    """Whether a call takes 166 times as long, one in fifty."""
    slower: float = 1.0


def generate(folder: Path, seed: int = 20261127) -> dict[str, Benchmark]:
    """Write the repository; its functions by the name of file and function."""
    draw = random.Random(seed)
    found: dict[str, Benchmark] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(FILES):
        text = _HEAD
        for number, shape in enumerate(_shapes()):
            name = f"test_{file}.py::test_{number}"
            found[name] = Benchmark(
                ns=round(2 ** draw.uniform(13, 20)),
                noise=NOISES[(number + file) % len(NOISES)],
                phase=draw.random() < 0.2,
                stalls=name == STALLED,
            )
            text += shape.format(number, name)
        (folder / f"test_{file}.py").write_text(text)
    (folder / "times.py").write_text(_TIMES)
    (folder / "pytest.ini").write_text("[pytest]\nperf_benchmarks = true\nperf_calibrate = off\npythonpath = .\n")
    write_times(folder, found)
    return found


def write_times(folder: Path, benchmarks: dict[str, Benchmark]) -> None:
    """Write what the functions of a repository wait for."""
    spec = {name: asdict(each) for name, each in benchmarks.items()}
    (folder / "benchmarks.json").write_text(json.dumps(spec, indent=1))


def _shapes() -> Iterator[str]:
    """The functions of a file, in which there are twenty tests."""
    tests = 0
    for place in range(IN_FILE):
        shape, count = _SHAPES[place % len(_SHAPES)]
        if tests + count > IN_FILE:
            shape, count = _PLAIN, 1
        if tests == IN_FILE:
            return
        tests += count
        yield shape
