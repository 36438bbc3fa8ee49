"""Batches copied from pinned memory, without waiting for the copy."""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="copies to a device need one")


@pytest.mark.perf
def test_pinned_copies_are_faster(perf):
    torch.manual_seed(0)
    weight = torch.randn(2048, 2048, device="cuda")
    pageable = torch.randn(8192, 2048)
    pinned = pageable.pin_memory()

    def from_pageable():
        return pageable.to("cuda") @ weight

    def from_pinned():
        return pinned.to("cuda", non_blocking=True) @ weight

    perf.compare(from_pageable, from_pinned).assert_faster(by="10%")
