"""`perf.assert_whatif`: declared in a test's body, judged on the trace of the call before it."""

from __future__ import annotations

import json

import pytest
from plugin.project import SHORT

# pytester forgets what its runs import, and the optimizations register themselves once.
import pytest_perfdl.whatif.transforms  # noqa: F401

OWN = """
from pytest_perfdl.whatif import Change, Plan, transform

@transform("nothing_at_all")
def nothing_at_all(context, twice: bool = False):
    return Change(Plan())

def test_step(perf):
    perf(int)
    perf.assert_whatif("nothing_at_all", gains_less_than="3%", twice=True)
    perf.assert_whatif("fused_optimizer", gains_less_than="0.5%")
"""

TRAINING = """
import torch

from pytest_perfdl.machine.rates import Machine

MACHINE = Machine(memory_bytes_per_s=10e9)

def training(**options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, **options)
    batch = torch.randn(4, 16)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step

def test_train(perf):
    perf(training(foreach=False, fused=False), name="plain")
    perf.assert_whatif("fused_optimizer", gains_less_than="3%", machine=MACHINE)
    perf.assert_whatif("data_parallel", gains_less_than="3%", ranks=2)
    perf(training(fused=True), name="fused")
    perf.assert_whatif("fused_optimizer", gains_less_than="3%", machine=MACHINE)
    perf(sum, range(100), name="python")
    perf.assert_whatif("fused_optimizer", gains_less_than="3%")

def test_too_early(perf):
    perf.assert_whatif("fused_optimizer", gains_less_than="3%")
    perf(int)
"""


def test_without_perf_only_the_arguments_are_checked(project):
    project.write("test_own.py", OWN)
    done = project.run()
    assert done.code == 0, done.output
    assert "1 perf test ran once" in done.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            "'fast', gains_less_than='3%'",
            "perf.assert_whatif: there is no optimization 'fast'; known optimizations: amp, ",
        ),
        (
            "'amp', gains_less_than='3%', type='int8'",
            "perf.assert_whatif: amp has no parameter 'type'; known parameters: dtype",
        ),
        ("'data_parallel', gains_less_than='3%'", "perf.assert_whatif: data_parallel needs a parameter: "),
        ("'workers', gains_less_than='3%', workers='x'", "workers:workers=x: expected a whole number"),
        ("3, gains_less_than='3%'", "perf.assert_whatif(3): expected the name of an optimization"),
        ("'amp', gains_less_than='5us'", "gains_less_than='5us': expected a percentage such as '3%'"),
        ("'amp', gains_less_than='3%+5us'", "gains_less_than='3%+5us': expected a percentage such as '3%'"),
        ("'amp', gains_less_than='100%'", "gains_less_than='100%': expected a percentage such as '3%'"),
        ("'amp', gains_less_than=0.03", "gains_less_than=0.03: expected a percentage such as '3%'"),
        ("'amp', gains_less_than='3%', machine='12GB'", "machine='12GB': expected a pytest_perfdl.Machine"),
    ],
    ids=["name", "parameter", "missing", "value", "no name", "time", "two", "all", "number", "machine"],
)
def test_wrong_arguments_are_one_line(inner, arguments, problem):
    inner.makepyfile(f"def test_step(perf):\n    perf(int)\n    perf.assert_whatif({arguments})\n")
    done = inner.runpytest_inprocess()
    assert any(problem in line for line in done.outlines)
    assert not any(line.startswith(">") for line in done.outlines), "no traceback"
    done.assert_outcomes(failed=1)


@pytest.mark.long
def test_an_update_that_is_not_fused_fails(project):
    project.write("test_train.py", TRAINING)
    done = project.run("--perf", *SHORT, "--perf-fail-on=regressed", "--perf-json=run.json", "--junitxml=junit.xml")
    assert done.code == 1, done.output
    found = json.loads((project.root / "run.json").read_text())["tests"]
    (train,) = (test for test in found if test["id"].endswith("::test_train"))
    metrics = {name: metric for name, metric in train["metrics"].items() if "whatif" in name}
    assert {name: metric["verdict"] for name, metric in metrics.items()} == {
        "plain.whatif fused_optimizer": "regressed",
        "plain.whatif data_parallel:ranks=2": "inconclusive",
        "fused.whatif fused_optimizer": "unchanged",
        "python.whatif fused_optimizer": "inconclusive",
    }
    assert metrics["fused.whatif fused_optimizer"]["reason"] == (
        "nothing to optimize: the optimizer update is already fused"
    )
    assert metrics["python.whatif fused_optimizer"]["reason"].startswith(
        "no prediction: the trace has no optimizer update (Optimizer.step) of a single optimizer"
    )
    assert "network_bytes_per_s" in metrics["plain.whatif data_parallel:ranks=2"]["reason"]
    assert train["verdict"] == "regressed"
    assert "plain.whatif fused_optimizer: predicted gain " in train["reason"]
    assert "budget < 3%" in done.output
    assert project.cases()["test_train"].properties["perf.plain.whatif fused_optimizer.verdict"] == "regressed"
    assert "perf.assert_whatif() uses the trace of the previous perf(...) call, but there is none" in done.output
