"""Baselines in an S3-compatible service: a run records, another machine's run compares, and every command."""

import json

import pytest
import s3_server
from plugin.project import SHORT

pytestmark = pytest.mark.torch

SPEED = """
import time
import pytest
import torch


def step(x):
    time.sleep(0.004)
    return x @ x


@pytest.mark.perf
def test_step(perf):
    perf(step, torch.ones(8, 8))
"""
ID = "test_speed.py::test_step"


@pytest.fixture
def url():
    for module in s3_server.NEEDED:
        pytest.importorskip(module, reason=s3_server.INSTALL)
    with s3_server.s3_server() as bucket:
        yield f"{bucket}/baselines"


def test_a_run_records_and_another_machine_compares(project, url, tmp_path, monkeypatch):
    project.ini(f"perf_dir = {url}")
    project.write("test_speed.py", SPEED)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    recorded = project.run("--perf-update", *SHORT, "--perf-repeats=2", "--perf-note=the first one")
    assert recorded.code == 0, recorded.output
    assert "1 baseline recorded" in recorded.output
    assert not (project.root / "baselines").exists()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    compared = project.run("--perf", *SHORT, "--perf-fail-on=invalid", "--perf-budget=30")
    assert compared.code == 0, compared.output
    assert "1 compared" in compared.output
    (test,) = json.loads((project.root / "perf-report" / "run.json").read_text())["tests"]
    assert test["base_record"]["note"] == "the first one"

    accepted = "perf-report/run.json", "--all", "--note", "another machine"
    for words, code, says in (
        (("list",), 0, "1 baseline"),
        (("accept", *accepted), 0, f"accepted   {ID}  {url}/"),
        (("show", "test_step"), 0, f"{url}/"),
        (("history",), 0, "2 points"),
        (("refresh", "perf-report"), 0, "1 unchanged"),
        (("baseline", "verify"), 0, "1 baseline verified"),
        (("baseline", "compact"), 3, "nothing to compact"),
        (("prune",), 3, "nothing to prune: no baseline without a test (checked 1 baseline)"),
        (("baseline", "rename", ID, "test_speed.py::test_gone"), 0, "renamed  "),
        (("prune", "--all", "--apply"), 0, "deleted  test_speed.py::test_gone"),
        (("list",), 3, f"no baselines in {url}"),
    ):
        finished = project.command(*words)
        assert (finished.code, says in finished.output) == (code, True), (words, finished.output)

    offline = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    refused = project.run("--perf", *SHORT, **offline)
    assert refused.code == 4, refused.output
    (line,) = [line for line in refused.lines if line.startswith("ERROR: ")]
    assert line.startswith(f"ERROR: {url} cannot be read: no connection (EndpointConnectionError")
    assert "Traceback" not in refused.output
    for words in (("list",), ("history",), ("baseline", "verify")):
        for name, value in offline.items():
            monkeypatch.setenv(name, value)
        finished = project.command(*words)
        assert finished.code == 2, finished.output
        assert len(finished.lines) == 1
        assert f"{url} cannot be read: no connection" in finished.output
