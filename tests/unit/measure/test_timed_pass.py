"""Notes of the timed pass."""

import sys
from types import SimpleNamespace

import pytest

from pytest_perfdl.measure import timed_pass


@pytest.mark.parametrize(
    "ranks, threads, quota, told",
    [
        (0, 1, None, ""),
        (0, 4, None, ""),
        (0, 8, None, "8 threads share 4 CPUs"),
        (0, 8, 1.5, "8 threads share a CPU quota of 1.5"),
        (0, 2, 1.5, "2 threads share a CPU quota of 1.5"),
        (0, 1, 0.5, "1 thread shares a CPU quota of 0.5"),
        (0, 4, 6.0, ""),
        (4, 1, None, ""),
        (5, 1, None, "5 ranks share 4 CPUs"),
        (2, 3, 3.0, "2 ranks with 3 threads each share a CPU quota of 3"),
    ],
)
def test_more_threads_than_cpus(monkeypatch, ranks, threads, quota, told):
    monkeypatch.setattr(timed_pass.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(timed_pass, "least_quota", lambda _: quota)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: threads))

    found = [finding.message for finding in timed_pass._oversubscribed(ranks)]

    assert found == ([f"{told}, so their times include waiting for a CPU"] if told else [])
