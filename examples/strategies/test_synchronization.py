"""Losses read when the epoch is over, instead of one in every step."""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="on a CPU there is nothing to wait for")


@pytest.mark.perf
def test_not_waiting_for_the_loss_is_faster(perf):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20))).to("cuda")
    batch = torch.randn(1024, 256, device="cuda")

    def train():
        model.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    def reading_every_loss():
        return train().item()

    def reading_no_loss():
        return train().detach()

    perf.compare(reading_every_loss, reading_no_loss).assert_not_slower(within="1%")
