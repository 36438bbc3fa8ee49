"""Projects in the states that the documents describe, for their commands to run in."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from commands.shown import ROOT
from plugin.project import environment as environment_of
from plugin.project import surroundings

from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.runs.qualify import log, outcome_of

NOT_RUN = {
    "pip install pytest-perfdl": "network",
    "pip install -e . pytest-perfdl": "network",
    "python -m webbrowser perf-report/index.html": "browser",
    "make browser": "browser",
    "make docs": "network: installs mkdocs; a CI job of its own",
    "make test": "a CI job of its own",
    "make lint": "a CI job of its own",
    "make commands": "this very run",
}
"""Reviewed: commands that are shown and not run, and why. At most ten."""

QUICK = """perf_repeats = 3
perf_warmup = 5
perf_steps = 20
perf_budget = 120
perf_limits =
    step_time:20%
    block_time:20%
    per_kernel:off
"""
"""For states where the text does not depend on how long measuring takes, nor on how small a slowdown is found."""

SLOWER = (
    "loss = model(batch).square().mean()",
    "loss = sum(model(batch) for _ in range(4)).square().mean() / 16",
)
"""A change of README's step that does more, and takes longer."""

_ENVIRONMENT = {"SHARD": "1", "COLUMNS": "120", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def environment(**more):
    """As a shell has it in which this project's virtual environment is active."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    author = {
        f"GIT_{who}_{what}": "perfdl@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    return surroundings(**_ENVIRONMENT, **author, PATH=path) | more


def shell(command, folder, timeout=900, **more):
    """Run a command as a person would type it; its exit code and what it printed."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout


def must(command, folder, **more):
    """Run a command of our own, which must succeed."""
    code, output = shell(command, folder, **more)
    assert code == 0, f"{command}\n{output}"


def readmes_test():
    """The test file that README begins with."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return next(block for block in re.findall(r"(?s)```python\n(.*?)```", text) if "def test_train_step" in block)


def written(folder, *, ini=""):
    """A repository with README's test, committed and pushed to a remote, and the files that documents speak of."""
    folder.mkdir(parents=True)
    (folder / "tests" / "perf").mkdir(parents=True)
    (folder / "tests" / "test_speed.py").write_text(readmes_test(), encoding="utf-8")
    if ini:
        (folder / "pytest.ini").write_text(f"[pytest]\n{ini}", encoding="utf-8")
    must("git init -q -b main && git add --all && git commit -q -m 'A perf test'", folder)
    data(folder)
    names = "\n".join(path.name for path in folder.iterdir() if path.name not in ("tests", "pytest.ini", ".git"))
    (folder / ".git" / "info" / "exclude").write_text(
        f"{names}\nperf-report\nfirst-report\n*.jsonl\n/*.json\nold\nnew\n__pycache__\n"
    )
    must(f"git clone -q --bare . '{folder}.origin' && git remote add origin '{folder}.origin' && git fetch -q", folder)
    return folder


def recorded(folder):
    """`written`, with baselines that are committed, a tag, and a report of a run."""
    written(folder, ini=QUICK)
    must("pytest -q --perf-update && git add baselines && git commit -q -m 'Its baseline' && git tag v1.2", folder)
    shutil.copytree(folder / "perf-report", folder / "first-report")
    must("pytest -q --perf", folder)
    report = folder / "perf-report"
    shutil.copy(report / "run.json", folder / "run.json")
    for name in ("old", "new"):
        (folder / name).mkdir()
        shutil.copy(report / "run.json", folder / name / "run.json")
    campaigns(folder)
    return folder


def laptop(state, folder):
    """Another checkout, without the baselines that CI recorded, and with the report of that run."""
    copy_of(state, folder)
    shutil.rmtree(folder / "baselines", ignore_errors=True)
    shutil.rmtree(folder / "perf-report", ignore_errors=True)
    shutil.copytree(folder / "first-report", folder / "perf-report")
    shutil.copy(folder / "perf-report" / "run.json", folder / "run.json")
    shutil.rmtree(folder / "traces")
    shutil.copytree(folder / "perf-report" / "traces", folder / "traces")
    return folder


def refreshing(state, folder):
    """A checkout with the reports of two runs of the main branch."""
    copy_of(state, folder)
    for name in ("1", "2"):
        shutil.copytree(folder / "first-report", folder / "nights" / name)
    return folder


def orphan(state, folder):
    """A baseline, committed, whose test is gone, beside that of one that is there."""
    copy_of(state, folder)
    (record,) = folder.glob("baselines/*/tests/test_speed/test_train_step.json")
    gone = record.parents[1] / "test_gone" / record.name
    gone.parent.mkdir()
    gone.write_text(record.read_text().replace("tests/test_speed.py::", "tests/test_gone.py::"))
    must("git add baselines && git commit -q -m 'A baseline without a test'", folder)
    return folder


TRAINING = """
import torch

try:
    from fast_kernels import activation
except ImportError:
    activation = torch.tanh

x = torch.randn(64, 64)

def train_step():
    y = x
    for _ in range({layers}):
        y = activation(y)
    return y
"""
OF_TRAINING = """
from training import train_step

def test_train_step(perf):
    perf(train_step)
"""


def history(state, folder):
    """Commits after the tag, one of which makes a step do more; its test is there since then."""
    copy_of(state, folder)
    ini = folder / "pytest.ini"
    ini.write_text(ini.read_text() + "pythonpath = .\n")

    def commit(message, layers):
        (folder / "training.py").write_text(TRAINING.format(layers=layers), encoding="utf-8")
        (folder / "notes.txt").write_text(message)
        must(f"git add --all . && git commit -q -m '{message}'", folder)

    commit("Train", 4)
    must("git tag -f v1.2", folder)
    commit("Rename things", 4)
    commit("Twice the layers", 8)
    (folder / "tests" / "perf" / "test_train.py").write_text(OF_TRAINING, encoding="utf-8")
    commit("A perf test", 8)
    return folder


def environments(state, folder):
    """Two virtual environments, the new one with a library that does more."""
    history(state, folder)
    library = "import torch\n\ndef activation(x):\n    return torch.tanh(x){}\n"
    for name, version, more in (("old", "1.0", ""), ("new", "2.0", ".clone()")):
        both = {"fast_kernels": (version, library.format(more)), "equal": ("1.0", "")}
        environment_of(folder / "venvs" / name, **both)
    return folder


def shards(state, folder):
    """The run files of four shards, the first of which has the only test."""
    copy_of(state, folder)
    for index in (1, 2, 3, 4):
        run = json.loads((folder / "run.json").read_bytes())
        run["shard"] = {"index": index, "count": 4, "tests": 1, "require": 0}
        run["tests"] = run["tests"] if index == 1 else []
        (folder / "shards" / str(index)).mkdir(parents=True)
        (folder / "shards" / str(index) / "run.json").write_text(json.dumps(run))
    return folder


def nights(state, folder):
    """A folder of run files of successive nights."""
    copy_of(state, folder)
    shutil.copytree(ROOT / "tests" / "data" / "nights", folder / "nights")
    return folder


def branches(state, folder):
    """A baseline to which this branch and the branch `other` added processes."""
    copy_of(state, folder)
    append = "pytest -q --perf-update=append && git commit -q -a -m 'More processes'"
    must(f"git branch other && {append} && git switch -q other && {append} && git switch -q main", folder)
    return folder


def conflict(state, folder):
    """A merge of these branches that git stopped."""
    branches(state, folder)
    must("! git merge -q other", folder)
    return folder


STATES = {
    "branches": branches,
    "conflict": conflict,
    "laptop": laptop,
    "orphan": orphan,
    "history": history,
    "environments": environments,
    "shards": shards,
    "nights": nights,
    "refreshing": refreshing,
}
"""What a document calls a state in `with:`, made of `recorded`."""


def copy_of(state, folder):
    """A state to change, with a remote of its own."""
    shutil.copytree(state, folder, symlinks=True)
    return folder


def data(folder):
    """Traces and tables under every name that documents give them."""
    source = folder / "trace.json.gz"
    must(f"'{sys.executable}' '{Path(__file__).with_name('profile_step.py')}' '{source}'", folder)
    for name in ("before", "after"):
        shutil.copy(source, folder / f"{name}.json.gz")
    for name in ("before", "after", "runs-before", "runs-after", "traces"):
        (folder / name).mkdir()
        for number in (0, 1):
            shutil.copy(source, folder / name / f"{number}.json.gz")
    for name in ("A", "B"):
        shutil.copy(source, folder / name)
    for rank in (0, 1):
        _as_rank(source, folder / "traces" / f"{rank}.json.gz", rank)
    ranks = [f"rank{number}.json.gz" for number in range(4)]
    for name in ("mixer.json.gz", "points.csv", "sizes.json", "memory.json", *ranks):
        shutil.copy(ROOT / "tests" / "data" / name, folder)


def _as_rank(source, target, rank):
    trace = json.loads(gzip.decompress(source.read_bytes()))
    trace["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": 2}
    target.write_bytes(gzip.compress(json.dumps(trace).encode()))


def campaigns(folder):
    """Campaigns of `perfdl qualify` that have ended: the document's commands go on with them, and nothing is left."""
    run = read_run(folder / "perf-report" / "run.json")
    for name, words in {
        "perf-qualify.jsonl": ["tests/perf"],
        "gpt.jsonl": ["tests/perf", "-k", "gpt and not slow"],
    }.items():
        shares = [0.0] * 60 + [0.02, 0.03, 0.05, 0.1, 0.2] * 20
        for share in shares:
            log(folder / name).append(outcome_of(run, inject=share, seconds=10.0, arguments=words))


def make_slower(folder):
    """Apply `SLOWER`, and leave it uncommitted."""
    path = folder / "tests" / "test_speed.py"
    text = path.read_text(encoding="utf-8")
    assert SLOWER[0] in text
    path.write_text(text.replace(*SLOWER), encoding="utf-8")


def apply_diff(folder, path, diff):
    """Apply the minus and plus lines of a document's diff."""
    lines = [line for line in diff.splitlines() if line[:1] in "+-"]
    old = "\n".join(line[1:] for line in lines if line.startswith("-"))
    new = "\n".join(line[1:] for line in lines if line.startswith("+"))
    text = (folder / path).read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    (folder / path).write_text(text.replace(old, new), encoding="utf-8")
