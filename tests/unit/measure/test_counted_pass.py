"""Counting on several ranks: all take the same steps, and one writes the exemplar."""

from types import SimpleNamespace

import pytest
import torch

from pytest_perfdl.measure import process_group
from pytest_perfdl.measure.commands import Count, Profile, Profiled
from pytest_perfdl.measure.program import Program
from unit.measure.answers import Conversation


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_rank_adds_memory_to_the_exemplar(tmp_path, monkeypatch, rank):
    conversation = Conversation(Profile(2, 1, str(tmp_path), exemplar=True))
    for _ in Program(conversation).steps():
        torch.ones(1000).add(1)
    profiled = conversation.answers[0]
    assert isinstance(profiled, Profiled)
    before = (exemplar := tmp_path / profiled.exemplar).read_bytes()

    monkeypatch.setattr(process_group, "_joined", [SimpleNamespace(rank=rank)])
    counting = Conversation(Count(2, str(tmp_path), flops=False, exemplar=profiled.exemplar))
    steps = 0
    for _ in Program(counting).steps():
        torch.ones(1000).add(1)
        steps += 1
    # A rank that took another number of steps would leave the others waiting in their collectives.
    assert steps == 4
    assert counting.answers[0].peak_memory > 0
    assert (exemplar.read_bytes() != before) == (rank == 0)
