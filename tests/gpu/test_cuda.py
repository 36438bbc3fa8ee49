"""On a CUDA device: what is measured there, that it is exact where it says so, and that idle time has its cause.

python -m pytest tests/gpu
"""

from __future__ import annotations

import json
import os
import textwrap

import pytest
from plugin.project import SHORT

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("device")]

REPEATS = "--perf-repeats=1" if os.environ.get("PERFDL_STAND_IN") else "--perf-repeats=2"
MODEL = """
import pytest
import torch

WIDTH = 512


def model(compiled=False):
    made = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH)).cuda()
    return torch.compile(made) if compiled else made


def train(net, optimizer, batch):
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
"""
STEPS = {
    "eager": """
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        perf(train, net, optimizer, torch.randn(64, WIDTH, device="cuda"), items=64)
    """,
    "compiled": """
        net = model(compiled=True)
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        perf(train, net, optimizer, torch.randn(64, WIDTH, device="cuda"))
    """,
    "graph": """
        net, batch = model(), torch.randn(64, WIDTH, device="cuda")
        with torch.no_grad():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    net(batch)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                net(batch)
        perf(graph.replay)
    """,
    "copy": """
        net, batch = model(), torch.randn(256, WIDTH).pin_memory()

        def step():
            with torch.no_grad():
                return net(batch.to("cuda", non_blocking=True)).sum()

        perf(step)
    """,
    "sync": """
        net, batch = model(), torch.randn(64, WIDTH, device="cuda")

        def step():
            with torch.no_grad():
                return net(batch).sum().item()

        perf(step)
    """,
}


def write(project, name):
    body = textwrap.indent(textwrap.dedent(STEPS[name]), "    ")
    project.write("test_cuda.py", f"{MODEL}\n\n@pytest.mark.perf\ndef test_step(perf):{body}\n")


def run(project, *arguments):
    done = project.run(*SHORT, "--perf-json=run.json", *arguments)
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    return done, test


@pytest.mark.parametrize("name", STEPS)
def test_counts_are_exact_and_kernels_are_timed(project, name):
    write(project, name)
    done, _ = run(project, "--perf-update", REPEATS)
    assert done.code == 0, done.output
    done, test = run(project, "--perf", REPEATS)
    metrics = test["metrics"]

    assert done.code in (0, 1), done.output
    assert {"kernels", "launches", "kernel_time", "peak_memory", "step_time"} <= metrics.keys()
    counts = {key: (metric["base"], metric["new"]) for key, metric in metrics.items() if metric["kind"] == "counted"}
    assert all(base == new for key, (base, new) in counts.items() if key in ("kernels", "launches", "ops", "h2d_bytes"))
    assert metrics["kernels"]["new"] > 0
    assert not [finding for finding in test["integrity"] if finding["level"] == "invalid"]
    if name == "copy":
        assert metrics["h2d_bytes"]["new"] == 256 * 512 * 4
    if name == "graph":
        assert metrics["launches"]["new"] == 1
        assert metrics["kernels"]["new"] >= 3


def test_the_account_of_a_trace_closes(project):
    from pytest_perfdl.analysis.account.parts import step_parts
    from pytest_perfdl.trace import read

    write(project, "sync")
    assert project.run(*SHORT, "--perf-update", "--perf-repeats=1").code == 0
    (exemplar,) = (project.root / "baselines").rglob("*.trace.json.gz")
    parts = step_parts(read(exemplar))

    assert parts.on_device
    assert (parts.ns.sum(axis=0) == parts.step_ns).all()
    assert "synchronization" in parts.classes or "launch latency" in parts.classes


def test_a_product_that_fills_the_device_comes_near_its_limits(project):
    project.ini("perf_calibrate = auto")
    project.write(
        "test_cuda.py",
        """
        import pytest
        import torch

        @pytest.mark.perf
        def test_step(perf):
            a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            perf(torch.mm, a, b, model_flops=2 * 8192**3)
        """,
    )
    done, test = run(project, "--perf-update", "--perf-repeats=2")
    assert done.code == 0, done.output
    (limits,) = (project.root / "baselines").rglob("machine.json")
    rates = json.loads(limits.read_text())["flops_per_s"]
    assert rates["bfloat16"] > 2 * rates["tf32"] > 0
    used = {name: metric["new"] for name, metric in test["metrics"].items() if metric["unit"] in ("%", "flop/s")}
    assert {"device_busy", "sm_efficiency", "occupancy", "launch_gap", "tensor_core_share", "mfu"} <= used.keys()
    assert "host_overhead" not in used
    # All of the step is one kernel on tensor cores, the work that the calibration measures.
    assert 70 < used["flops_utilization"] <= 110
    assert used["mfu"] == pytest.approx(used["flops_utilization"], rel=0.01)
    assert used["tensor_core_share"] > 95
    assert all(0 <= used[name] <= 100 for name in ("device_busy", "sm_efficiency", "occupancy", "launch_gap"))
    (row,) = [row for row in test["operators"] if row["operator"] == "aten::mm"]
    assert row["new"]["flops"] == pytest.approx(2 * 8192**3)
    assert row["new"]["bound"] == "compute"


def test_copies_that_nothing_hides_are_exposed(project):
    write(project, "copy")
    _, test = run(project, "--perf-update", "--perf-repeats=1")
    assert 0 < test["metrics"]["exposed_copies"]["new"] <= 100


def test_the_peak_of_the_device_is_accounted_for(project):
    write(project, "eager")
    _, test = run(project, "--perf-update", "--perf-repeats=1", "--perf-memory=all")
    (found,) = test["memory"]
    account = found["new"]
    assert account["device"] == "cuda:0"
    assert account["residual"] == 0
    assert account["peak_bytes"] == test["metrics"]["peak_memory"]["new"]
    assert account["reserved_bytes"] >= account["peak_bytes"]
    # Two weights and two biases, each rounded up by the allocator.
    weights = 2 * (512 * 512 + 512) * 4
    assert weights <= account["by_category"]["parameters"] < weights + 4 * 512
    assert account["by_category"].get("other", 0) <= 0.02 * account["peak_bytes"]
