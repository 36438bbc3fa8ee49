"""Matrix products in bfloat16, where the CPU has instructions for them."""

import pytest
import torch


def has_fast_bfloat16():
    """Whether bfloat16 products are faster here: CUDA from Ampere on, or AVX-512 BF16 and AMX."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@pytest.mark.perf
@pytest.mark.skipif(not has_fast_bfloat16(), reason="bfloat16 is emulated here")
def test_autocast_is_faster(perf):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).to(device)
    batch = torch.randn(256, 512, device=device)

    def train():
        model.zero_grad()
        model(batch).square().mean().backward()

    def in_float32():
        train()

    def in_bfloat16():
        with torch.autocast(device, dtype=torch.bfloat16):
            train()

    perf.compare(in_float32, in_bfloat16).assert_faster(by="10%")
