"""Generates a repository with a small model, a perf test, and a history in which one commit makes the step slower."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BROKEN = 3
LIKE_IT = 0.1
MODEL = '''"""A small network."""

import time

import torch

{broken}

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(6))

    def forward(self, x):
        """Version {touched}."""
        for layer in self.layers:
            x = layer(x).relu(){extra}
        {wait}
        return x


def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def scale(x):
    """Version {other}."""
    return x * {other}
'''
TEST = """import pytest
import torch
import model

@pytest.mark.perf
def test_step(perf):
    torch.manual_seed(0)
    net, x = model.Block(), torch.randn(128, 256)
    perf(lambda: net(x).sum().backward())
"""
MEASURE = """import statistics, time
import torch
import model

torch.set_num_threads(1)
net, x = model.Block(), torch.randn(128, 256)
times = []
for _ in range(300):
    started = time.perf_counter()
    net(x).sum().backward()
    times.append(time.perf_counter() - started)
print(statistics.median(times[100:]))
"""


@dataclass(frozen=True)
class Made:
    """A repository, its first commit and the one that is to be found."""

    root: Path
    good: str
    culprit: str


def generate(root: Path, share: float, commits: int, seed: int) -> Made:
    """Make a repository of so many commits.

    Parameters
    ----------
    share
        By how much the culprit is slower, without any other count; 0 for a culprit with one more operator a layer.
    """
    lots = random.Random(seed)
    culprit = lots.randint(1, commits)
    free = [each for each in range(1, commits) if each not in (culprit, culprit - 1)]
    broken = set(lots.sample(free, BROKEN))
    like_it = set(lots.sample([each for each in free if each not in broken], round(LIKE_IT * commits)))
    merge = lots.choice([each for each in free if each not in broken | like_it])
    root.mkdir(parents=True)
    _git(root, "init", "--quiet", "-b", "main")
    state = {"touched": 0, "other": 1}
    delay = 0.0
    hashes = []
    for number in range(commits + 1):
        state["touched"] += number in like_it
        state["other"] += number % 5 == 0
        slow = number >= culprit
        text = MODEL.format(
            broken="import nothing_there\n" if number in broken else "",
            extra=".relu()" if slow and not share else "",
            wait=f"spin({delay:.7f})" if share and slow else "pass",
            **state,
        )
        (root / "model.py").write_text(text)
        (root / "notes.md").write_text(f"{number}\n")
        if number == 0:
            # The delay is a share of what the step takes on this machine.
            delay = share * float(_output(root, sys.executable, "-c", MEASURE)) if share else 0.0
            (root / "pytest.ini").write_text("[pytest]\npythonpath = .\nperf_calibrate = off\n")
            (root / ".gitignore").write_text("__pycache__/\nperf-report/\n")
        if number == commits:
            (root / "test_speed.py").write_text(TEST)
        _commit(root, number, is_merge=number == merge)
        hashes.append(_git(root, "rev-parse", "HEAD"))
    return Made(root, hashes[0], hashes[culprit])


def _commit(root: Path, number: int, *, is_merge: bool) -> None:
    if is_merge:
        _git(root, "checkout", "--quiet", "-b", "side")
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "-m", f"commit {number}")
    if is_merge:
        _git(root, "checkout", "--quiet", "main")
        _git(root, "merge", "--quiet", "--no-ff", "-m", f"merge {number}", "side")


def _git(root: Path, *words: str) -> str:
    identity = ("-c", "user.name=Author", "-c", "user.email=author@example.org")
    return _output(root, "git", *identity, *words)


def _output(root: Path, *words: str) -> str:
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
