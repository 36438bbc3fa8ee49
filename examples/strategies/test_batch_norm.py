"""Batch norms folded into the convolutions before them, for inference."""

import pytest
import torch
from torch.nn.utils.fusion import fuse_conv_bn_eval


@pytest.mark.perf
def test_folded_batch_norms_are_faster(perf):
    torch.manual_seed(0)
    pairs = [(torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32)) for _ in range(6)]
    apart = torch.nn.Sequential(*(module for pair in pairs for module in pair)).eval()
    folded = torch.nn.Sequential(*(fuse_conv_bn_eval(conv.eval(), norm.eval()) for conv, norm in pairs))
    images = torch.randn(4, 32, 32, 32)

    @torch.inference_mode()
    def with_batch_norms():
        return apart(images)

    @torch.inference_mode()
    def with_folded_ones():
        return folded(images)

    perf.compare(with_batch_norms, with_folded_ones).assert_faster(by="3%")
