"""Images whose channels are the inner dimension, as convolutions want them."""

import pytest
import torch


@pytest.mark.perf
def test_channels_last_is_faster(perf):
    torch.manual_seed(0)
    planes = torch.nn.Sequential(*(torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(3))).eval()
    pixels = torch.nn.Sequential(*(torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(3))).eval()
    pixels = pixels.to(memory_format=torch.channels_last)
    images = torch.randn(4, 64, 32, 32)
    turned = images.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def contiguous():
        return planes(images)

    @torch.inference_mode()
    def channels_last():
        return pixels(turned)

    perf.compare(contiguous, channels_last).assert_not_slower(within="3%")
