"""A step or a test that fails by itself keeps its traceback, and is no invalid measurement."""

import json

import pytest
from plugin.project import SHORT

TESTS = """
    def test_raises(perf):
        def step():
            raise RuntimeError("boom")
        perf(step)

    def test_asserts(perf):
        loss = perf(lambda: 2)
        assert loss < 1, "loss is too high"
"""


@pytest.mark.long
def test_a_failing_step_and_a_failing_assertion(project):
    project.write("test_speed.py", TESTS)
    failed = project.run("--perf", "--perf-json=run.json", *SHORT)

    assert failed.code == 1
    assert "RuntimeError: boom" in failed.output
    assert "AssertionError: loss is too high" in failed.output
    assert failed.output.count("TEST ERROR") == 2
    assert "2 test errors" in failed.line("0 compared")
    assert "INVALID" not in failed.output
    assert not any(line.startswith("again") for line in failed.lines)
    tests = json.loads((project.root / "run.json").read_text())["tests"]
    assert {test["verdict"] for test in tests} == {"invalid"}
