"""Counting on several ranks: all take the same steps, and one writes the exemplar."""

import pytest
import torch

from pytest_perfdl.analysis.account.peak import GROWING_STEPS
from pytest_perfdl.measure import process_group
from pytest_perfdl.measure.commands import Count, Profile, Profiled
from pytest_perfdl.measure.program import Program
from unit.measure.answers import Conversation


class Ranks(process_group.OneProcess):
    """One of two ranks, of which the other one keeps memory or not."""

    def __init__(self, rank, *, other_keeps=False):
        self.rank, self.other_keeps = rank, other_keeps

    def agree(self, *, every, some):
        return every, some or self.other_keeps


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_rank_adds_memory_to_the_exemplar(tmp_path, monkeypatch, rank):
    conversation = Conversation(Profile(2, 1, str(tmp_path), exemplar=True))
    for _ in Program(conversation).steps():
        torch.ones(1000).add(1)
    profiled = conversation.answers[0]
    assert isinstance(profiled, Profiled)
    before = (exemplar := tmp_path / profiled.exemplar).read_bytes()

    monkeypatch.setattr(process_group, "_joined", [Ranks(rank)])
    counting = Conversation(Count(2, str(tmp_path), flops=False, exemplar=profiled.exemplar))
    steps = 0
    for _ in Program(counting).steps():
        torch.ones(1000).add(1)
        steps += 1
    # A rank that took another number of steps would leave the others waiting in their collectives.
    assert steps == 4
    assert counting.answers[0].counts["peak_memory"] > 0
    assert (exemplar.read_bytes() != before) == (rank == 0)


@pytest.mark.long
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("other_keeps", [False, True])
def test_where_one_rank_keeps_memory_all_look_for_growth(tmp_path, monkeypatch, keeps, other_keeps):
    monkeypatch.setattr(process_group, "_joined", [Ranks(1, other_keeps=other_keeps)])
    counting = Conversation(Count(1, str(tmp_path), flops=True))
    kept, steps = [], 0
    for _ in Program(counting).steps():
        tensor = torch.ones(1000).add(1)
        if keeps:
            kept.append(tensor)
        steps += 1
    # Two windows for memory, one for FLOPs, and between them those in which growth shows.
    assert steps == 2 + (GROWING_STEPS + 1 if keeps or other_keeps else 0) + 1
    assert counting.answers[0].counts.get("growth") == (4000 if keeps else None)


def test_a_step_of_a_period_begins_with_what_those_before_it_left(tmp_path):
    counting = Conversation(Count(2, str(tmp_path), flops=False))
    kept: list[torch.Tensor] = []
    for _ in Program(counting).steps():
        if kept:
            torch.empty(1 << 21)
            kept.clear()
        else:
            kept.append(torch.empty(1 << 20))
    # 4 MiB of the first step, and 8 MiB in the second; what other tests of this process hold is static.
    counts = counting.answers[0].counts
    assert counts["peak_memory"] - counts["static_memory"] == 12 << 20
