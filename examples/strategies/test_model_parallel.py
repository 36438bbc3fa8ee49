"""Layers on two devices: for models that do not fit on one. It costs the copy between them."""

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")


@pytest.mark.perf
def test_two_devices_cost_little_more_than_one(perf):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4096, 4096) for _ in range(2)]
    alone = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(2))).to("cuda:0")
    first, second = layers[0].to("cuda:0"), layers[1].to("cuda:1")
    batch = torch.randn(4096, 4096, device="cuda:0")

    def on_one_device():
        return alone(batch)

    def on_two_devices():
        return second(first(batch).to("cuda:1"))

    perf.compare(on_one_device, on_two_devices).assert_not_slower(within="50%")
