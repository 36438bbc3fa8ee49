"""A Hugging Face model: one training step, and decoding a few tokens."""

import pytest
import torch


@pytest.fixture
def llama():
    # Inside the fixture: importing transformers takes seconds, and this file is also imported to be collected.
    pytest.importorskip("transformers")
    from models import llama

    return llama


@pytest.fixture
def model(llama):
    torch.manual_seed(0)
    return llama.tiny_llama()


@pytest.mark.perf
def test_train_step(perf, llama, model):
    luck = torch.Generator().manual_seed(1)
    sequences = [torch.randint(512, (length,), generator=luck) for length in (160, 120)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7, fused=True)
    loss = perf(llama.train_step, model.train(), optimizer, sequences, items=len(sequences))
    assert loss.isfinite()


@pytest.mark.perf
def test_decode(perf, llama, model):
    prompt = torch.randint(512, (1, 48), generator=torch.Generator().manual_seed(1))
    ids = perf(llama.decode, model.eval(), prompt, tokens=6, items=6)
    assert ids.shape == (1, 48 + 6)
