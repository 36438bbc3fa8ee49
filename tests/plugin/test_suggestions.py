"""A test that got slower says what would help: advice on what is blamed, from the trace of this run."""

import json

import pytest
from plugin.project import SHORT

from pytest_perfdl.model.record import Finding

SUITE = """
    import os
    import time

    import pytest


    def batches():
        while True:
            # Asleep it wants no CPU: where others use that, there is no advice.
            time.sleep(float(os.environ.get("LOAD_SECONDS", "0")))
            yield 1


    @pytest.mark.perf(limits={"ops": 0})
    def test_step(perf):
        import torch

        ones = torch.ones(3)
        for _ in perf.steps(batches()):
            time.sleep(0.03)
            if "LOAD_SECONDS" in os.environ:
                ones + 1
"""
# An operator more is a regression whatever the clock says.
COUNTED = (*SHORT, "--perf-repeats=1", "--perf-limit=step_time:off", "--perf-limit=block_time:off")


@pytest.mark.long
def test_a_regression_says_what_would_help(project):
    project.write("test_speed.py", SUITE)
    recorded = project.run("--perf-update", *COUNTED)
    assert recorded.code == 0, recorded.output
    finished = project.run("--perf", *COUNTED, "--perf-json=run.json", LOAD_SECONDS="0.03")
    assert finished.code == 1
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    assert test["verdict"] == "regressed"
    assert "input" in {cause["name"] for cause in test["blame"]}
    if any(Finding(**finding).meaning.contends for finding in test["integrity"]):
        assert test["suggestions"] == [], "the trace may be of the others"
        assert "advice: " not in finished.output
        return
    [found] = test["suggestions"]
    assert found["text"].startswith("The step waits for input data in ")
    assert found["how"].startswith("DataLoader(num_workers=")
    # With a worker the step takes 30 ms instead of 60; 45 where both share a core, as they may.
    assert 0.05 < found["interval"][0] < found["gain"] < found["interval"][1] < 1
    assert f"advice: {found['how']}, predicted gain " in " ".join(finished.output.split())
    assert f"Advice: `{found['how']}`, predicted gain " in (project.root / "perf-report/summary.md").read_text()
