"""Which memory is read to empty caches, and before which steps."""

import sys

import pytest
import torch

from pytest_perfdl.measure import flushing
from pytest_perfdl.measure.commands import Count, Profile, Settle, Time
from pytest_perfdl.measure.program import Program

from .answers import Conversation

MIB = 2**20


class Noted(flushing.Flush):
    """Notes in `order` when caches are emptied, and when the memory for that is given back."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def __call__(self):
        self.order.append("flush")

    def free(self):
        self.order.append("free")


@pytest.mark.parametrize("threads, caches, times", [(1, 8, 1), (4, 1, 1), (4, 2, 2), (2, 8, 2)])
def test_on_the_host_the_cache_of_every_thread_is_read_over(monkeypatch, threads, caches, times):
    monkeypatch.setattr(flushing.processors, "last_cache_bytes", lambda _: MIB)
    monkeypatch.setattr(flushing.processors, "last_caches", lambda _: caches)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    held = flushing._reader().__self__
    assert held.nbytes == flushing.TIMES * times * MIB
    assert held.device.type == "cpu"


def test_without_torch_memory_is_read_all_the_same(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(flushing.processors, "last_cache_bytes", lambda _: MIB)
    read = flushing._reader()
    assert len(read.func.__self__) == flushing.TIMES * MIB
    assert read() == 0


def test_the_memory_is_kept_until_it_is_given_back(monkeypatch):
    made = []
    monkeypatch.setattr(flushing, "_reader", lambda: made.append("memory") or (lambda: made.append("read")))
    flush = flushing.Flush()
    flush()
    flush()
    flush.free()
    flush()
    assert made == ["memory", "read", "read", "memory", "read"]


@pytest.mark.parametrize("prepares", [False, True])
def test_caches_are_emptied_before_steps_of_the_warm_up_and_timed_ones(tmp_path, prepares):
    order = []
    host = Conversation(Settle(2, 2, 2), Time(1, 2), Count(1, str(tmp_path), flops=False))
    program = Program(host, flush=Noted(order), prepares=prepares)
    for _ in program.steps():
        if prepares:
            program.flush()
        order.append("step")
    cold = ["flush", "step"] * 2
    # The counted step comes after one that is not counted.
    assert order == ["free", *cold, *cold, "free", "step", "step", "free"]


@pytest.mark.long
def test_caches_are_emptied_before_profiled_steps_and_that_is_none_of_their_operators(tmp_path):
    held, found = torch.ones(64), []
    for flush in (None, flushing.Flush()):
        host = Conversation(Profile(2, 1, str(tmp_path), exemplar=False))
        for _ in Program(host, flush=flush).steps():
            held.abs()
        found.append([host.answers[0].counts["ops"], sorted(row.name for row in host.answers[0].rows)])
    assert found[0] == found[1]
