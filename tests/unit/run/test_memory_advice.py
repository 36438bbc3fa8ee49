"""What would lower a peak, worked out by hand from its rows."""

import pytest
from making import record

from pytest_perfdl.model.memory import MemoryAccount, MemoryChange, MemoryRow
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.run.advice import with_memory_advice


def row(category, size, module="", *, tensors=1, since=10, until=None, phase="forward"):
    return MemoryRow(category, module, "", phase, "", "float32", "[4]", tensors, size, since, until)


def advised(*rows, moment=None, before=1):
    account = MemoryAccount("cpu", rows, sum(each.bytes for each in rows), 50, 100, moment=moment)
    base = None if before is None else MemoryAccount("cpu", (), before, 50, 100)
    judgement = Judgement("test", "regressed", "", memory=(MemoryChange("", base, account),))
    result = with_memory_advice(Result("test", "test.py", 1, judgement, True, new=record()))
    return [(each.how, each.predicted_peak_bytes, each.saved_bytes) for each in result.judgement.memory[0].advice]


LAYERS = (
    row("activations", 500, "Net.blocks.0.fc", since=10),
    row("activations", 100, "Net.blocks.0", since=20),
    row("activations", 400, "Net.blocks.1.fc", since=30),
    row("activations", 100, "Net.blocks.1", since=40),
    row("parameters", 1000, since=-1, phase="setup"),
)


def test_layers_that_repeat_keep_their_results_alone():
    # At the loss all layers have run, and none is computed again yet.
    loss = row("temporaries", 300)
    assert advised(*LAYERS, loss, moment=loss) == [
        ("torch.utils.checkpoint.checkpoint around each block of Net.blocks", 1000 + 300 + 100 + 100, 900)
    ]


def test_while_a_layer_runs_again_it_has_all_of_its_own():
    inside = row("temporaries", 300, "Net.blocks.1.fc")
    # The larger of the two is the one that counts.
    assert advised(*LAYERS, inside, moment=inside) == [
        ("torch.utils.checkpoint.checkpoint around each block of Net.blocks", 1000 + 300 + 100 + 100 + 600, 300)
    ]


@pytest.mark.parametrize("rows", [LAYERS[:2], (row("activations", 500, "Net.fc"),), ()])
def test_one_layer_is_none_that_repeats(rows):
    assert advised(*rows, row("parameters", 100)) == []


def test_gradients_that_are_alive_in_the_forward_pass():
    kept = row("gradients", 200, "Net.fc", since=-5, phase="backward")
    forward, backward = (row("temporaries", 300, phase=phase) for phase in ("forward", "backward"))
    assert advised(kept, forward, moment=forward) == [
        ("optimizer.zero_grad(set_to_none=True) before the forward pass", 300, 200)
    ]
    assert advised(kept, backward, moment=backward) == []
    assert advised(row("gradients", 200, since=5), forward, moment=forward) == []


def test_little_is_not_worth_it():
    forward = row("temporaries", 9600)
    assert advised(row("gradients", 400, since=-5), forward, moment=forward) == []
    assert len(advised(row("gradients", 600, since=-5), forward, moment=forward)) == 1


@pytest.mark.parametrize("before", [None, 10_000])
def test_only_a_peak_that_got_higher_is_advised_on(before):
    loss = row("temporaries", 300)
    assert advised(*LAYERS, loss, moment=loss, before=before) == []
