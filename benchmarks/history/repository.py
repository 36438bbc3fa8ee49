"""Makes a repository with a thousand commits that change baselines, by `git fast-import`."""

from __future__ import annotations

import math
import random
import subprocess
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.baseline import files
from pytest_perfdl.baseline.text import dump
from pytest_perfdl.model.record import Call, Code, Key, MeasurementPlan, Occasion, Record, Row, Series

MACHINE = "cpu-example-8c"
_START = 1_767_225_600
"""2026-01-01, in seconds since 1970; a commit every six hours."""


def test_id(number: int) -> str:
    return f"tests/perf/test_models.py::test_step[{number}]"


def record(
    test: str, step_ns: float, *, seed: int, torch: str = "2.12.0", rows: int = 120, repeats: int = 10
) -> Record:
    """A record as a training step leaves one: with rows of operators and files of code, 60 kB."""
    draw = random.Random(seed)
    times = tuple(float(round(step_ns * math.exp(draw.gauss(0, 0.005)))) for _ in range(repeats))
    parts = tuple(
        Row("operator", f"aten::operator_{number}", 4, tuple(draw.randrange(10**4, 10**6) for _ in range(repeats)))
        for number in range(rows)
    )
    series = {
        "step_time": Series("timed", "ns", "lower", times),
        "block_time": Series("timed", "ns", "lower", tuple(round(each * 1.01) for each in times)),
        "ops": Series("counted", "1", "lower", (480.0,) * repeats),
        "peak_memory": Series("counted", "B", "lower", (float(2**26),) * repeats),
    }
    return Record(
        test=test,
        key=Key(MACHINE, {"cpu": "example", "cores": 8}),
        context={"torch": torch, "python": "3.11.9"},
        test_hash="0123456789abcdef",
        plan=MeasurementPlan(15, 40),
        calls=(Call("", series, parts, tuple(round(each * 1.1) for each in times)),),
        occasions=(Occasion(repeats, "2026-01-01T00:00:00Z", f"{seed:040x}", None, seconds=4.0),),
        code=Code({f"src/module_{number}.py": f"{number:012x}" for number in range(200)}),
    )


def make(folder: Path, commits: int, tests: int = 100, changed: int = 3, step_at: int | None = None) -> int:
    """A repository in which every commit changes the baselines of some tests.

    The first commit has all of them. From commit `step_at` on, steps take 5 % longer. Returns the number of versions of
    baselines.
    """
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    versions = 0
    with subprocess.Popen(["git", "fast-import", "--quiet"], cwd=folder, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for commit in range(commits):
            message = f"Commit {commit}".encode()
            process.stdin.write(
                b"commit refs/heads/main\ncommitter A <a@example.org> %d +0000\n" % (_START + 21600 * commit)
            )
            process.stdin.write(b"data %d\n%s\n" % (len(message), message))
            numbers = range(tests) if commit == 0 else [(commit * changed + each) % tests for each in range(changed)]
            for number in numbers:
                slower = 1.05 if step_at is not None and commit >= step_at else 1.0
                path = files.baseline_path(Path("baselines"), MACHINE, test_id(number)).as_posix()
                data = dump(replace(record(test_id(number), 4e7 * slower, seed=commit * tests + number)))
                process.stdin.write(b'M 100644 inline "%s"\ndata %d\n%s\n' % (path.encode(), len(data), data))
                versions += 1
    assert process.returncode == 0
    subprocess.run(["git", "reset", "-q", "--hard", "main"], cwd=folder, check=True)
    return versions
