"""Steps of which everything is known; `known_steps.py` works out what must be found of them."""

import time

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.perf
MIB = 2**20


def test_product(perf):
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    out = torch.empty(1024, 1024)
    perf(lambda: torch.mm(a, b, out=out), model_flops=2 * 1024**3)


def test_copy(perf):
    a, b = torch.ones(64 * MIB // 4), torch.empty(64 * MIB // 4)
    perf(b.copy_, a)


def test_convolution(perf):
    images, weight = torch.randn(8, 64, 56, 56), torch.randn(64, 64, 3, 3)
    with torch.no_grad():
        perf(functional.conv2d, images, weight, padding=1)


def test_elementwise(perf):
    a = torch.ones(16 * MIB // 4)

    def step():
        for _ in range(4):
            a.mul_(1.0)

    perf(step)


def test_sleep(perf):
    a, b = torch.randn(512, 512), torch.randn(512, 512)

    def step():
        torch.mm(a, b)
        time.sleep(0.02)

    perf(step)


@pytest.mark.perf(threads=2)
def test_two_threads(perf):
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    perf(torch.mm, a, b, model_flops=2 * 1024**3)
