"""torch.compile in measured tests: whose its figures are, what is said of it, and where it keeps its caches."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from plugin.project import SHORT, commit, make_repository

pytestmark = pytest.mark.long

# Where nothing is compiled to machine code, caches stay empty: a file in the folder stands for what a compiler leaves.
TEST = """
import os
from pathlib import Path

import pytest
import torch

torch._dynamo.config.recompile_limit = 1000

@torch.compile(backend="eager")
def first(x):
    return (x + 1).sum()

@torch.compile(backend="eager", dynamic=False)
def second(x):
    return (x * 2).sum()

@pytest.mark.perf
def test_compiled(perf):
    inductor, triton = (Path(os.environ[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"))
    assert inductor.parent == triton.parent
    with open({log!r}, "a") as log:
        print(Path(__file__).parent, inductor, *(path.name for path in inductor.glob("*")), file=log)
    inductor.mkdir(parents=True, exist_ok=True)
    (inductor / "left").touch()
    perf(first, torch.ones(100), name="a")
    sizes = iter(range(30, 10000))
    perf(lambda: second(torch.ones(next(sizes) // 2)), name="b")
"""


def test_figures_belong_to_their_call_and_caches_to_their_side(project, tmp_path):
    log = tmp_path / "log.txt"
    project.ini("perf_budget = 1")
    project.write("test_it.py", TEST.format(log=str(log)))
    make_repository(project.root)
    commit(project, "one")
    done = project.run(*SHORT, "--perf-against=HEAD", "--perf-json=run.json")

    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    assert test["metrics"]["a.recompiles"]["new"] == 0 < test["metrics"]["b.recompiles"]["new"]
    assert test["metrics"]["b.compile_time"]["new"] != test["metrics"]["a.compile_time"]["new"] > 0

    said = " ".join(done.output.split())
    assert "b: torch.compile compiled inside timed steps" in said
    assert re.search(r"step \d: second \(tensor 'x' size mismatch at index 0. expected \d+, actual \d+\)", said)
    assert "mark_dynamic" in said

    lines = [line.split() for line in log.read_text().splitlines()]
    folders = {code: folder for code, folder, *_ in lines}
    assert len(set(folders.values())) == len(folders) == 2, "each side has its own"
    for side in folders:
        found = [left for code, _, *left in lines if code == side]
        assert found == [[], *[["left"]] * (len(found) - 1)], "empty at first, and kept"
        assert len(found) > 1
    assert not any(Path(folder).exists() for folder in folders.values())
