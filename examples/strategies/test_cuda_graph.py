"""A step of small kernels captured as a CUDA graph: one launch instead of hundreds."""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs CUDA")


@pytest.mark.perf
def test_a_graph_is_faster_than_its_launches(perf):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(50))).to("cuda").eval()
    batch = torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        captured = torch.cuda.make_graphed_callables(model, (batch,))

    @torch.no_grad()
    def launching_each():
        return model.forward(batch)

    @torch.no_grad()
    def launching_once():
        return captured(batch)

    perf.compare(launching_each, launching_once).assert_faster(by="30%")
