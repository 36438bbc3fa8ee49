"""Records, repositories and run files to make histories of."""

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.baseline import files
from pytest_perfdl.baseline.text import dump
from pytest_perfdl.model.record import Call, Finding, Key, MeasurementPlan, Occasion, Record, Row, Series
from pytest_perfdl.model.record_json import to_json

TEST = "tests/test_gpt.py::test_step"
KEY = Key("cpu-a", {"cpu": "a"})
CONTEXT = {"torch": "2.12.0", "python": "3.11.9", "driver": None}


def record(step=4e7, *, test=TEST, key=KEY, context=CONTEXT, ops=1699, commit=None, repeats=4, call=""):
    values = tuple(float(round(step * math.exp(0.004 * (number - (repeats - 1) / 2)))) for number in range(repeats))
    series = {
        "ops": Series("counted", "1", "lower", (float(ops),) * repeats),
        "step_time": Series("timed", "ns", "lower", values),
    }
    return Record(
        test=test,
        key=key,
        context=context,
        test_hash="0123456789abcdef",
        plan=MeasurementPlan(3, 20),
        calls=(Call(call, series, (Row("operator", "aten::mm", 4, (10**6,) * repeats),), (int(step),) * repeats),),
        occasions=(Occasion(repeats, "2026-05-02T10:00:00Z", commit, None),),
    )


def run_file(
    step=4e7,
    *,
    date="2026-05-02T10:00:00Z",
    commit="c" * 40,
    base=None,
    paired=None,
    invalid=(),
    verdict="unchanged",
    **of,
):
    """The parts of a run file that a history reads, as a run writes them, with one test."""
    one = replace(record(step, commit=commit, repeats=1, **of), integrity=tuple(invalid))
    test = {
        "id": one.test,
        "verdict": verdict,
        "metrics": {} if paired is None else {"step_time": paired},
        "record": to_json(one),
        "base_record": None if base is None else to_json(base),
    }
    return json.dumps({"schema": 1, "date": date, "commit": commit, "tests": [test]}).encode()


def invalid(code="too-noisy"):
    return Finding("invalid", code, "of no use")


def paired(effect, reach=0.01, base=4e7):
    return {"evidence": "paired", "effect": effect, "ci95": [effect - reach, effect + reach], "base": base}


class Repository:
    """A real git repository with a project in it."""

    def __init__(self, root, project="."):
        self.root = root
        self.project = root / project
        self.project.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "-b", "main")
        (self.project / "pytest.ini").write_text("[pytest]\n")
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "A project")

    def git(self, *words):
        identity = ("-c", "user.name=Author", "-c", "user.email=author@example.org")
        done = subprocess.run(["git", *identity, *words], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def path(self, one):
        return files.baseline_path(self.project / "baselines", one.key.slug, one.test)

    def write(self, *records, note=None):
        for one in records:
            path = self.path(one)
            path.parent.mkdir(parents=True, exist_ok=True)
            data = dump(one)
            if note is not None:
                data = json.dumps(json.loads(data) | {"note": note}).encode()
            path.write_bytes(data)

    def commit(self, message, *records, note=None):
        self.write(*records, note=note)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


def write(folder: Path, **files: bytes):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}.json").write_bytes(data)
