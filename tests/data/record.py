"""Makes anew what the documentation's samples are made from (docs/samples.py), on a quiet machine.

    python tests/data/record.py            # all of it, in about half an hour
    python tests/data/record.py points     # points.csv

points.csv          times of a formula, with noise of a fixed seed
mixer.json.gz       three steps of the Mixer of examples/ on images that are jittered before they are cropped
tutorial/           the run of docs/tutorials/first-regression.md in which the test fails
memory.json         a run of TIED, below, in which the head has weights of its own
sizes.json          a run of SCALING, below, in which a penalty compares every sample with all others
perf-qualify.jsonl  a campaign of perfdl qualify, made up like points.csv
rank0.json.gz to 3  four ranks of a simulated job, rank 2 of which loads slowly from its fourth step on
serving.json.gz     a server of a language model, made up: 22 steps that decode or also read a prompt, and work between
nights/             what `perfdl history` reads of the run files of 24 nights, made up, too

Then run docs/samples.py.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from pytest_perfdl.runs.qualify import Case, Metric, Outcome, log

DATA = Path(__file__).resolve().parent
ROOT = DATA.parents[1]

SCALING = """\
import pytest
import torch


def train_step(model, optimizer, batch):
    hidden = model(batch)
    loss = hidden.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.perf(scaling={"batch": [8, 16, 32, 64]})
def test_train_step(perf, batch):
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters())
    perf(train_step, model, optimizer, torch.randn(batch, 512))
"""
ALIKE = ("hidden.square().mean()", "hidden.square().mean() - (hidden[:, None] - hidden).abs().mean()")

TIED = """\
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Model(nn.Module):
    def __init__(self, words=4096, width=128):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 256, batch_first=True) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        hidden = self.embedding(words)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


@pytest.mark.perf(limits={"step_time": "off", "block_time": "off"})
def test_train_step(perf):
    model, words = Model(), torch.randint(4096, (4, 65))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        logits = model(words[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    perf(step)
"""
UNTIED = ("        self.head.weight = self.embedding.weight\n", "")


def points() -> None:
    """Layers that take time by the sample, what of it workers share, what they cost each other, and a fixed part."""
    random = np.random.default_rng(0)
    rows = ["layers,batch,workers,time_ms"]
    for layers, batch, workers in product((2, 4, 8, 16), (4, 8, 16, 32), (1, 2, 4, 8)):
        time = 12 + 0.4 * layers + 0.8 * layers * batch / workers + 0.5 * layers * (workers - 1) / workers + workers
        rows += [f"{layers},{batch},{workers},{time * (1 + 0.02 * random.standard_normal()):.3f}" for _ in range(2)]
    (DATA / "points.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def campaign() -> None:
    """Runs that nobody made: effects with noise, unpaired, of which one beyond 15 % is certain."""
    random = np.random.default_rng(0)
    runs = log(DATA / "perf-qualify.jsonl")
    runs.path.unlink(missing_ok=True)
    for share in (0, 0.1, 0.3, 0) * 3:
        cases = []
        for name in ("test_short", "test_long"):
            effects = [round(share + 0.02 * random.standard_normal(), 4) for _ in range(2)]
            verdict = "regressed" if min(effects) > 0.15 else "suspect" if min(effects) > 0.05 else "unchanged"
            step, block = (Metric(verdict, effect) for effect in effects)
            metrics = {"step_time": step, "block_time": block}
            cases.append(Case(f"tests/test_speed.py::{name}", verdict, "unpaired", True, metrics))
        runs.append(Outcome(share, "2026-11-22T12:00:00Z", 20.0, None, "made-up-2c-1t", ("tests",), tuple(cases)))


def nights() -> None:
    """Rounds against one baseline: a new torch that changes nothing, and five nights later a step of 4.5 %."""
    random = np.random.default_rng(0)
    test, base_ns = "tests/test_speed.py::test_train_step", 41_200_000
    (DATA / "nights").mkdir(exist_ok=True)

    def record(ns: int, date: str, commit: str, torch: str) -> dict[str, Any]:
        series = {"kind": "timed", "unit": "ns", "better": "lower", "values": [ns]}
        return {
            "schema": 1,
            "test": test,
            "key": {"slug": "made-up-2c-1t", "parts": {}},
            "context": {"python": "3.11.9", "torch": torch},
            "occasions": [{"repeats": 1, "date": date, "commit": commit}],
            "calls": [{"name": "", "metrics": {"step_time": series}}],
        }

    for night in range(24):
        effect = round(float(np.exp(0.005 * random.standard_normal()) * (1.045 if night >= 17 else 1) - 1), 4)
        date, commit = f"2026-05-{night + 1:02}T02:00:00Z", hashlib.sha1(str(night).encode()).hexdigest()
        rounds = {"evidence": "paired", "effect": effect, "ci95": [effect - 0.01, effect + 0.01], "base": base_ns}
        made = {
            "id": test,
            "verdict": "unchanged",
            "metrics": {"step_time": rounds},
            "record": record(round(base_ns * (1 + effect)), date, commit, "2.13.0" if night >= 12 else "2.12.0"),
            "base_record": record(base_ns, "2026-04-30T12:00:00Z", "0" * 40, "2.12.0"),
        }
        text = json.dumps({"schema": 1, "date": date, "commit": commit, "tests": [made]})
        (DATA / "nights" / f"{night + 1:02}.json").write_text(text + "\n", encoding="utf-8")


def ranks() -> None:
    """Two hosts of two ranks, four layers, and a loader of which one takes eight times as long."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "ranks"))
    from chrome_files import chrome_trace
    from job_spec import Clocks, Model, Spec, Straggler
    from simulated_job import simulate

    spec = Spec(
        name="documentation",
        ranks=4,
        steps=7,
        model=Model(layers=4),
        clocks=Clocks(ranks_per_host=2, offsets_ns=(0, 1_300_000)),
        straggler=Straggler(rank=2, since=3, cause="input", size=7.0),
    )
    traces, _ = simulate(spec)
    for rank, events in enumerate(traces):
        text = json.dumps(chrome_trace(spec, rank, events), separators=(",", ":")).encode()
        (DATA / f"rank{rank}.json.gz").write_bytes(gzip.compress(text, mtime=0))


def serving() -> None:
    """Steps in ranges of their own, which say how many tokens they read and write."""
    sys.path.insert(0, str(ROOT / "tests"))
    from unit.trace.chrome import kernel, launch, text, x

    random = np.random.default_rng(0)
    events: list[dict[str, Any]] = []
    start = 0.0
    for number in range(22):
        prompts = int(number % 4 == 1)
        name = f"execute_context_{prompts}({512 * prompts})_generation_{64 - prompts}({64 - prompts})"
        kernels = [900 * (1 + 3 * prompts) + round(10 * random.standard_normal(), 1), 240.0]
        at = start + 60
        events.append(x("aten::mm", start + 10, 60))
        for place, (kind, length) in enumerate(zip(("gemm", "attention"), kernels, strict=True)):
            events.append(launch(start + 20 + 15 * place, 10, 4 * number + place + 1))
            events.append(kernel(kind, at, length, 4 * number + place + 1))
            at += length + 2
        events.append(launch(start + 80, at - start - 75, 0, name="cudaStreamSynchronize"))
        events.append(x(name, start, at - start + 10, "user_annotation"))
        # Between the ranges a token is chosen, and the next batch is put together.
        start = at + 40
        events += [x("aten::argmax", start, 90), launch(start + 20, 10, 4 * number + 4)]
        events.append(kernel("sample", start + 40, 60, 4 * number + 4))
        start += 150
    (DATA / "serving.json.gz").write_bytes(gzip.compress(text(events), mtime=0))


def mixer() -> None:
    """Profiled here: all of it on one thread."""
    os.environ["PERFDL_PLANT"] = "jitter_before_crop"
    sys.path.insert(0, str(ROOT / "examples"))
    import torch
    from models.images import image_loader
    from models.mixer import Mixer, train_step
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    model = Mixer(layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=4, active=3),
        on_trace_ready=lambda done: done.export_chrome_trace(str(DATA / "mixer.json.gz")),
        record_shapes=True,
        with_modules=True,
    ) as profiler:
        for _, (images, labels) in zip(range(7), image_loader(workers=0), strict=False):
            train_step(model, optimizer, images, labels)
            profiler.step()


def tutorial() -> None:
    """What docs/tutorials/first-regression.md says, step by step."""
    text = (ROOT / "docs" / "tutorials" / "first-regression.md").read_text(encoding="utf-8")
    code, change = (re.search(rf"(?s)```{kind}\n(.*?)```", text) for kind in ("python", "diff"))
    before, after = (line[1:].strip() for line in change[1].splitlines())
    with regressed("tests/test_speed.py", code[1], (before, after)) as report:
        shutil.rmtree(DATA / "tutorial", ignore_errors=True)
        (DATA / "tutorial" / "traces").mkdir(parents=True)
        shutil.copy(report / "run.json", DATA / "tutorial")
        for trace in [*report.glob("traces/*.base.json.gz"), *report.glob("traces/*.new.json.gz")]:
            shutil.copy(trace, DATA / "tutorial" / "traces")


def curve() -> None:
    """Outside of git, and therefore unpaired."""
    with regressed("test_step.py", SCALING, ALIKE, "--perf-repeats=5", git=False) as report:
        run_file = json.loads((report / "run.json").read_bytes())
        (DATA / "sizes.json").write_text(json.dumps(run_file, separators=(",", ":")) + "\n", encoding="utf-8")


def memory() -> None:
    """Weights that are no longer shared."""
    with regressed("test_model.py", TIED, UNTIED) as report:
        run_file = json.loads((report / "run.json").read_bytes())
        for test in run_file["tests"]:
            # The accounts are what this is for.
            test["traces"] = []
        (DATA / "memory.json").write_text(json.dumps(run_file, separators=(",", ":")) + "\n", encoding="utf-8")


@contextlib.contextmanager
def regressed(name: str, code: str, change: tuple[str, str], *options: str, git: bool = True) -> Iterator[Path]:
    """Record baselines of the code, change it, and measure again: the report of the run that fails."""
    with tempfile.TemporaryDirectory() as scratch:
        test = Path(scratch, name)
        test.parent.mkdir(exist_ok=True)
        test.write_text(code, encoding="utf-8")
        if git:
            run(scratch, "git", "init", "--quiet")
            commit(scratch, name, "A perf test")
        pytest(scratch, "--perf-update", *options)
        if git:
            commit(scratch, "baselines", "Its baseline")
        test.write_text(code.replace(*change), encoding="utf-8")
        pytest(scratch, "--perf", expected=1)
        yield Path(scratch, "perf-report")


def pytest(folder: str, *words: str, expected: int = 0) -> None:
    """Run pytest; the tests are in files of their own folder."""
    run(folder, sys.executable, "-m", "pytest", *words, expected=expected)


def commit(folder: str, name: str, message: str) -> None:
    """Commit a file, as somebody."""
    somebody = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    run(folder, "git", "add", name)
    run(folder, "git", *somebody, "commit", "--quiet", "-m", message)


def run(folder: str, *words: str, expected: int = 0) -> None:
    """Run a command, which has to end as expected."""
    print("$", *words, flush=True)
    code = subprocess.run(words, cwd=folder, check=False).returncode
    if code != expected:
        sys.exit(f"{words[0]} ended with exit code {code} instead of {expected}")


PARTS = {each.__name__: each for each in (points, campaign, nights, ranks, serving, mixer, tutorial, curve, memory)}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
