"""Searches between environments whose culprit is known: how often it is named, and after how many builds.

Two virtual environments differ in eight small wheels, made and installed here. One of the new ones makes the step
slower: by time alone (a busy wait of a share of the step), or by one more copy of its input, which counts show. Each
trial draws which one. With `--same`, both environments have equal wheels: then no run may be `regressed`.

    python benchmarks/bisect/environments.py --trials 20
    python benchmarks/bisect/environments.py --same --trials 20
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections import Counter
from pathlib import Path

NAMES = tuple(f"library_{letter}" for letter in "abcdefgh")
PLAIN = "def apply(x):\n    return x\n"
COPIES = "def apply(x):\n    return x.clone()\n"
WAITS = """
import time

def apply(x):
    until = time.perf_counter_ns() + {nanoseconds}
    while time.perf_counter_ns() < until:
        pass
    return x
"""
TEST = f"""
import torch
{"".join(f"import {name}" + chr(10) for name in NAMES)}

def test_step(perf):
    x = torch.randn(512, 512)
    libraries = [{", ".join(NAMES)}]

    def step():
        y = x
        for library in libraries:
            y = torch.tanh(library.apply(y))
        return y.square().mean()

    perf(step)
"""


def wheel(folder: Path, name: str, version: str, source: str) -> Path:
    """A wheel of one module (PEP 427)."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        file: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for file, text in files.items()
    }
    record = [f"{file},sha256={digest},{len(files[file].encode())}" for file, digest in digests.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def environment(path: Path, wheels: list[Path]) -> Path:
    """The interpreter of a new virtual environment, with these wheels and everything that is installed here."""
    venv.create(path, symlinks=True)
    (packages,) = path.glob("lib/python*/site-packages")
    entries = [entry for entry in sys.path[1:] if entry and not entry.endswith(".zip")]
    (packages / "all.pth").write_text("".join(f"{entry}\n" for entry in entries))
    python = path / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *wheels]
    subprocess.run(command, check=True)
    return python


def pair(root: Path, culprit: str, kind: str, share: float) -> tuple[Path, Path]:
    """The two environments of a trial; there is no culprit where the kind is `same`."""
    slow = {"time": WAITS.format(nanoseconds=round(share * step_ns())), "copy": COPIES, "same": PLAIN}[kind]
    new_version = "1.0" if kind == "same" else "2.0"
    found = []
    for side, version in (("old", "1.0"), ("new", new_version)):
        folder = root / f"wheels-{side}"
        folder.mkdir(parents=True)
        sources = {name: slow if side == "new" and name == culprit else PLAIN for name in NAMES}
        found.append(environment(root / side, [wheel(folder, name, version, text) for name, text in sources.items()]))
    return found[0], found[1]


def step_ns() -> float:
    """How long the step takes, in nanoseconds, without a culprit."""
    import torch

    torch.set_num_threads(1)
    x, times = torch.randn(512, 512), []
    for _ in range(50):
        started = time.perf_counter_ns()
        y = x
        for _ in NAMES:
            y = torch.tanh(y)
        y.square().mean()
        times.append(time.perf_counter_ns() - started)
    return sorted(times)[len(times) // 4]


def main() -> None:
    """Run the trials, and print one line each and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.10, help="slowdown by time alone (default: 0.10)")
    parser.add_argument("--kind", choices=("time", "copy", "both"), default="both")
    parser.add_argument("--same", action="store_true", help="equal environments: count false alarms")
    arguments = parser.parse_args()
    draw, tally = random.Random(arguments.seed), Counter[str]()
    for number in range(arguments.trials):
        culprit = draw.choice(NAMES)
        kind = ("time", "copy")[number % 2] if arguments.kind == "both" else arguments.kind
        kind = "same" if arguments.same else kind
        with tempfile.TemporaryDirectory(prefix="bench-environments-") as folder:
            root = Path(folder)
            old, new = pair(root, culprit, kind, arguments.share)
            (root / "test_step.py").write_text(TEST)
            (root / "pytest.ini").write_text("[pytest]\nperf_calibrate = off\nperf_memory = off\n")
            tally[alike(root, old, new) if arguments.same else searched(root, old, new, culprit, kind)] += 1
    print(json.dumps(dict(tally)))


def alike(root: Path, old: Path, new: Path) -> str:
    """The verdict between two equal environments."""
    command = [new, "-m", "pytest", "-q", "-p", "no:randomly", "--perf", f"--perf-against-python={old}"]
    started = time.monotonic()
    subprocess.run([*command, "--perf-json=run.json"], cwd=root, capture_output=True, check=False)
    (test,) = json.loads((root / "run.json").read_text())["tests"]
    effect = test["metrics"]["step_time"]["effect"]
    print(f"{test['verdict']:12} {effect:+.3%} in {time.monotonic() - started:.0f} s", flush=True)
    return str(test["verdict"])


def searched(root: Path, old: Path, new: Path, culprit: str, kind: str) -> str:
    """Whether the culprit is named, within five builds."""
    command = [sys.executable, "-m", "pytest_perfdl.cli", "bisect", "--environments", "--json", old, new]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "test_step.py", "--", "-p", "no:randomly"], cwd=root, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - started
    if done.returncode not in (0, 1, 3):
        print(f"{kind:5} failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return "failed"
    found = json.loads(done.stdout)
    names = [each["name"] for each in found["culprits"]]
    right = names == [culprit.replace("_", "-")]
    effect = f"{found['effect']:+.1%}" if found["effect"] is not None else ""
    built = found["built_environments"]
    print(
        f"{kind:5} {found['status']:13} {'right' if right else 'WRONG'} {','.join(names):12} {effect:7} "
        f"{built} built, {seconds:.0f} s",
        flush=True,
    )
    return "named" if right and built <= 5 else "named after more than 5" if right else f"{found['status']}, not named"


if __name__ == "__main__":
    main()
