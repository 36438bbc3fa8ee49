"""How long do 1,000 tests with 3 machine IDs take: collecting them for `pytest --perf`, and `perfdl list`?

    python benchmarks/baselines/many.py

Of collecting, what a run does with baselines is timed in this process: it counts them, removes what killed writers
left, and estimates how long the tests take. Each is the least of several; CPU seconds, too, since other processes
disturb them less. The source of the tests is hashed whatever baselines there are, so it has a line of its own.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

from common.processes import checked, perfdl
from making import counted, record, rows, timed

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.config.settings import header, resolve
from pytest_perfdl.model.metrics import METRICS
from pytest_perfdl.model.record import Code, Key, Occasion
from pytest_perfdl.model.units import plural
from pytest_perfdl.workers.definition import _indexed, definition, read_file

TESTS, TEST_FILES, KEYS, REPEATS, ROWS, FILES = 1000, 20, 3, 10, 40, 30


def made(root: Path, each_file: int = TESTS // TEST_FILES) -> int:
    """Write a project with its baselines, so many tests in each file; bytes of a record."""
    values = [30_000_000 + 1000 * number for number in range(REPEATS)]
    names = ("step_time", "block_time", "kernel_time", "data_wait")
    series = {name: timed(*values) for name in names} | {
        name: counted(*[7] * REPEATS, unit=METRICS[name].unit)
        for name in ("ops", "kernels", "flops", "allocations", "peak_memory", "growth")
    }
    row = rows(**{f"op_{number}": (2, *[1000 + number] * REPEATS) for number in range(ROWS)})
    code = Code({f"src/module_{number}.py": "0123456789ab" for number in range(FILES)}, {"torch": "2.13.0"})
    occasion = Occasion(REPEATS, "2026-05-01T10:00:00Z", None, None, tuple(values), 2.5)
    base = replace(record(series, rows=row), occasions=(occasion,), code=code)
    store = Store(root, "baselines")
    (root / "tests").mkdir(parents=True)
    (root / "pytest.ini").write_text("[pytest]\n")
    for number in range(TEST_FILES):
        body = "".join(f"@pytest.mark.perf\ndef test_{each}(perf): ...\n" for each in range(each_file))
        (root / "tests" / f"test_{number}.py").write_text(f"import pytest\n{body}")
        for each in range(each_file):
            for key in range(KEYS):
                node = f"tests/test_{number}.py::test_{each}"
                one = replace(base, test=node, key=Key(f"cpu-machine-{key}", {}))
                path = store.path(node, one.key.slug)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(store.checked(one))
    return path.stat().st_size


def least(command: Sequence[str], root: Path, times: int) -> tuple[float, float]:
    """Seconds and CPU seconds of a command: the least of several."""
    found = [checked(command, cwd=root) for _ in range(times)]
    return min(each.seconds for each in found), min(each.cpu_seconds for each in found)


def collecting(root: Path, each_file: int = TESTS // TEST_FILES) -> tuple[float, float]:
    """Seconds and CPU seconds of what a run does with all baselines before it measures."""
    settings = resolve(pytest.Config.fromdictargs({}, ["--perf", f"--rootdir={root}", str(root)]))
    store = Store(root, settings.folder)
    tests = [f"tests/test_{number}.py::test_{each}" for number in range(TEST_FILES) for each in range(each_file)]
    start, cpu = time.perf_counter(), time.process_time()
    line = header(settings, root)
    store.sweep()
    known = store.repeat_seconds(tests)
    taken = time.perf_counter() - start, time.process_time() - cpu
    assert plural(len(tests) * KEYS, "baseline") in line, line
    assert all(known.values())
    return taken


def hashing(root: Path) -> tuple[float, float]:
    """Seconds and CPU seconds of what a run then does with the source of all tests."""
    files = sorted((root / "tests").glob("test_*.py"))
    tests = [(file, each) for file in files for each in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)]
    _indexed.cache_clear()
    start, cpu = time.perf_counter(), time.process_time()
    read = functools.cache(read_file)
    found = [made.hash for file, each in tests if (made := definition(file, (), each, root, read)) is not None]
    taken = time.perf_counter() - start, time.process_time() - cpu
    assert found
    assert len(found) == len(tests)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="of each command; the least counts (%(default)s)")
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory(prefix="baselines-") as work:
        root = Path(work) / "project"
        size = made(root)
        print(f"{TESTS} tests x {KEYS} machine IDs, {size} bytes each")
        listed = least(perfdl("list"), root, times)
        print(f"perfdl list: {listed[0]:.2f} s ({listed[1]:.2f} CPU seconds)")
        added = min(collecting(root) for _ in range(times))
        print(f"collecting: {1000 * added[0]:.0f} ms ({1000 * added[1]:.0f} ms of CPU)")
        hashed = min(hashing(root) for _ in range(times))
        print(f"hashing the source of the tests: {1000 * hashed[0]:.0f} ms ({1000 * hashed[1]:.0f} ms of CPU)")


if __name__ == "__main__":
    main()
