"""What counting and attributing memory cost: ratios of passes over the same steps, in one run.

    python benchmarks/memory/overhead.py                  # the counted pass against itself, and the attributed one
    python benchmarks/memory/overhead.py --before COMMIT  # the counted pass against that of another commit

Each pass runs in a process of its own, on the steps of examples/; processes alternate, and the ratio is that of the
medians. Asked for: at most 1.1 for counting against the commit before memory was explained, and at most 5 for the whole
process that attributes, against one that counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("gpt", "convnet", "dlrm")

CHILD = """
import json, sys, time
began = time.perf_counter()
tree, model, what, scratch = sys.argv[1:]
sys.path.insert(0, tree)
sys.path.insert(0, tree + "/examples")
import torch
torch.set_num_threads(1)
if what == "attributed":
    from pytest_perfdl.measure import attributed_pass
    attributed_pass.begin()
if model == "gpt":
    from models.gpt import GPT, GPTConfig, adamw, train_step
    config = GPTConfig()
    net = GPT(config)
    optimizer = adamw(net)
    ids = torch.randint(config.vocabulary, (2, config.context + 1))
    step = lambda: train_step(net, optimizer, ids)
elif model == "convnet":
    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Conv2d(3 if not i else 32, 32, 3, padding=1),
                                torch.nn.BatchNorm2d(32), torch.nn.ReLU()) for i in range(4)])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9)
    images = torch.rand(8, 3, 32, 32)
    def step():
        net(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
else:
    tables = torch.nn.ModuleList(torch.nn.Embedding(5000, 32) for _ in range(8))
    net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.Adam([*tables.parameters(), *net.parameters()])
    ids = torch.randint(5000, (128, 8))
    def step():
        rows = torch.cat([table(ids[:, i]) for i, table in enumerate(tables)], 1)
        net(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
def drive(steps):
    try:
        next(steps)
        while True:
            step()
            steps.send(None)
    except StopIteration as stop:
        return stop.value
if what == "attributed":
    from pytest_perfdl.measure.commands import Attribute
    start = time.perf_counter()
    answer = drive(attributed_pass.run(Attribute(1, False)))
    peak = answer.account.peak_bytes
else:
    from pytest_perfdl.measure import counted_pass
    from pytest_perfdl.measure.commands import Count
    for _ in range(3):
        step()
    start = time.perf_counter()
    peak = drive(counted_pass.run(Count(1, scratch, True))).peak_memory
print(json.dumps({"seconds": time.perf_counter() - start, "whole": time.perf_counter() - began, "peak": peak}))
"""


def measured(tree: Path, model: str, what: str, scratch: str) -> dict[str, float]:
    """One pass in a process of its own: seconds of the pass and of the process, and the peak in bytes."""
    command = [sys.executable, "-c", CHILD, str(tree), model, what, scratch]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=scratch)
    if done.returncode:
        sys.exit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    """Measure and print; 0 when what is asked for was reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", help="whose counted pass to compare with")
    parser.add_argument("--runs", type=int, default=7, help="of each process (%(default)s)")
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as scratch:
        before = ROOT
        if options.before:
            before = Path(scratch, "before")
            subprocess.run(
                ["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", before, options.before], check=True
            )
        try:
            for model in MODELS:
                found: dict[str, list[dict[str, float]]] = {"before": [], "now": [], "attributed": []}
                for _ in range(options.runs):
                    found["before"].append(measured(before, model, "counted", scratch))
                    found["now"].append(measured(ROOT, model, "counted", scratch))
                    found["attributed"].append(measured(ROOT, model, "attributed", scratch))

                def median(what: str, field: str, found: dict[str, list[dict[str, float]]] = found) -> float:
                    return statistics.median(each[field] for each in found[what])

                counting = median("now", "seconds") / median("before", "seconds")
                attributing = median("attributed", "whole") / median("now", "whole")
                same = {each["peak"] for each in (*found["now"], *found["attributed"])}
                missed |= counting > 1.1 or attributing > 5 or len(same) > 1
                print(
                    f"{model}: counting {counting:.2f} x ({median('now', 'seconds'):.2f} s), process that attributes "
                    f"{attributing:.2f} x ({median('attributed', 'whole'):.2f} s), its pass "
                    f"{median('attributed', 'seconds'):.2f} s; peaks {'equal' if len(same) == 1 else sorted(same)}",
                    flush=True,
                )
        finally:
            if options.before:
                subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(before)], check=False)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
