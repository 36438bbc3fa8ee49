"""A project whose steps run on the stand-in for a GPU, for tests that run pytest on it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from plugin.project import Project, commit, make_repository
from stand_in.stand_in_gpu import FOLDERS, Setup

TESTS = Path(__file__).resolve().parents[1]
CONFTEST = """
import os

GPU = None
if os.environ.get("PYTEST_PERFDL_WORKER"):
    import stand_in_gpu

    GPU = stand_in_gpu.install().gpu
"""
STEP = """
import conftest


def step(batch):
    out = (batch @ batch).relu()
    {extra}
    return out
"""
TEST = """
import pytest
import torch
from step import step


@pytest.mark.perf
def test_step(perf):
    {before}
    perf(step, torch.randn(200, 200, device="{device}"){options})
"""
IGNORED = "perf-report/\n.pytest_cache/\n__pycache__/\noutput-*\nrun.json\nshared/\nbaselines/\n"
QUICK = ("--perf-steps=4", "--perf-warmup=2", "--perf-repeats=2")


class GpuProject(Project):
    """Two commits' worth of a step: what is committed, and the working tree.

    Parameters
    ----------
    extra, head
        A statement at the end of the step, in the commit and in the working tree; by default the same.
    before
        A statement at the begin of the test.
    call
        Further arguments of `perf(...)`, after a comma.
    """

    def __init__(self, root, *, extra="pass", head=None, before="pass", device="cuda", call=""):
        super().__init__(root)
        self.shared = root / "shared"
        self.shared.mkdir()
        self.write(".gitignore", IGNORED)
        self.write("conftest.py", CONFTEST)
        self.write("step.py", STEP.format(extra=extra))
        self.write("test_gpu.py", TEST.format(before=before, device=device, options=call))
        make_repository(root)
        commit(self, "one")
        if head is not None:
            self.write("step.py", STEP.format(extra=head))

    def measure(self, *arguments, setup=None, **environment):
        """Run pytest, and give its output and the result of the test."""
        setup = replace(setup or Setup(), folder=str(self.shared))
        path = os.pathsep.join(map(str, (TESTS.parent, *FOLDERS)))
        options = {"STAND_IN_GPU": setup.dump(), "PYTHONPATH": path, **environment}
        done = self.run(*QUICK, "--perf-json=run.json", *arguments, **options)
        (test,) = json.loads((self.root / "run.json").read_text())["tests"]
        return done, test

    def busy(self):
        """When each process kept the device busy: process id -> list of (begin, end)."""
        found = {}
        for path in self.shared.glob("busy-*"):
            lines = (line.split() for line in path.read_text().splitlines())
            found[path.name.partition("-")[2]] = [(int(begin), int(end)) for _, begin, end in lines]
        return found
