"""Steps that are slower once `plant.PLANTED` is set: some do more work, the others the same work worse.

A test is called after what it plants; what the report must say is in `plants.py`.
"""

import hashlib
import threading
import time

import pytest
import torch
from plant import PLANTED
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.perf


def grown(small, large):
    """The size of the planted side, and of the other."""
    return large if PLANTED else small


def network(width=512, depth=3):
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())))


def trained(model, data, *, optimizer=None, steps=1):
    def step():
        for _ in range(steps):
            model.zero_grad()
            model(data).square().mean().backward()
        if optimizer is not None:
            optimizer.step()

    return step


# The same arithmetic, done worse


def test_transposed_operands(perf):
    """Sums read one operand against its order in memory."""
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)
    b = b.t() if PLANTED else b
    perf(lambda: (a + b).sum())


def test_channels_last_lost(perf):
    """Pooling and upsampling of images whose channels no longer lie side by side."""
    images = torch.randn(4, 64, 96, 96)
    images = images if PLANTED else images.to(memory_format=torch.channels_last)
    model = nn.Sequential(nn.BatchNorm2d(64), nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)).eval()
    with torch.no_grad():
        perf(model, images)


def test_unaligned_sizes(perf):
    """Transposed copies of rows of which none begins where a vector does."""
    wide = torch.randn(2048, grown(1024, 1025))
    data = wide[:, :1024]
    out = torch.empty(1024, 2048)
    perf(lambda: out.copy_(data.t()))


def test_threads_oversubscribed(perf):
    """Three more threads compute beside the step, on fewer processors."""
    model, data = network(), torch.randn(256, 512)
    if PLANTED:
        for _ in range(3):
            threading.Thread(target=hash_forever, daemon=True).start()

    def step():
        with torch.no_grad():
            for _ in range(4):
                model(data)

    perf(step)


def hash_forever():
    text = bytes(2**20)
    while True:
        hashlib.sha256(text).digest()


def test_sleep(perf):
    """A pause between operators."""
    model, data = network(), torch.randn(128, 512)

    def step():
        with torch.no_grad():
            hidden = model(data)
            if PLANTED:
                time.sleep(0.004)
            return model(hidden)

    perf(step)


# The same arithmetic in a dearer type


def test_float64(perf):
    a, b = (torch.randn(512, 512, dtype=grown(torch.float32, torch.float64)) for _ in range(2))
    perf(torch.mm, a, b)


def test_bfloat16_lost(perf):
    model, data = network(), torch.randn(256, 512)

    def step():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=not PLANTED):
            return model(data)

    perf(step)


# The same arithmetic, more traffic or calls


def test_batch_split_in_four(perf):
    model, data = network(256, 4), torch.randn(32, 256)
    parts = data.chunk(grown(1, 8))

    def step():
        with torch.no_grad():
            return [model(part) for part in parts]

    perf(step)


def test_loop_over_parameters(perf):
    """One operator a parameter instead of one for all."""
    model, data = network(64, 24), torch.randn(8, 64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=not PLANTED)
    perf(trained(model, data, optimizer=optimizer))


def test_fusion_lost(perf):
    """Attention written out."""
    query, key, value = (torch.randn(1, 8, 768, 32) for _ in range(3))

    def step():
        if not PLANTED:
            return functional.scaled_dot_product_attention(query, key, value)
        return torch.softmax(query @ key.transpose(-1, -2) / 32**0.5, -1) @ value

    perf(step)


# More work


def test_second_forward(perf):
    model, data = network(), torch.randn(128, 512)

    def step():
        if PLANTED:
            model(data)
        return model(data)

    perf(step)


def test_one_layer_more(perf):
    model, data = network(depth=grown(2, 3)), torch.randn(128, 512)
    perf(trained(model, data))


def test_wider(perf):
    width = grown(384, 512)
    perf(trained(network(width), torch.randn(128, width)))


def test_longer_sequence(perf):
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True).eval()
    data = torch.randn(4, grown(64, 96), 128)
    with torch.no_grad():
        perf(layer, data)


def test_larger_batch(perf):
    perf(trained(network(), torch.randn(grown(96, 160), 512)))


def test_checkpointing(perf):
    """The forward pass again in the backward pass."""
    model, data = network(), torch.randn(128, 512, requires_grad=True)

    def step():
        model.zero_grad()
        hidden = torch.utils.checkpoint.checkpoint(model, data, use_reentrant=False) if PLANTED else model(data)
        hidden.square().mean().backward()

    perf(step)


def test_gradients_of_the_frozen(perf):
    frozen, head, data = network(depth=3), nn.Linear(512, 64), torch.randn(128, 512)
    frozen.requires_grad_(PLANTED)
    model = nn.Sequential(frozen, head)
    perf(trained(model, data))


def test_another_loss(perf):
    model, data = network(), torch.randn(128, 512)

    def step():
        out = model(data)
        loss = out.square().mean()
        if PLANTED:
            loss = loss + (out @ out.t()).square().mean() + (out.t() @ out).square().mean()
        loss.backward()

    perf(step)


def test_larger_kernel(perf):
    size = grown(3, 5)
    model, data = nn.Conv2d(16, 16, size, padding=size // 2), torch.randn(4, 16, 32, 32)
    with torch.no_grad():
        perf(model, data)


def test_more_channels(perf):
    channels = grown(16, 32)
    model, data = nn.Conv2d(16, channels, 3, padding=1), torch.randn(4, 16, 48, 48)
    with torch.no_grad():
        perf(model, data)


def test_larger_vocabulary(perf):
    model, data = nn.Linear(256, grown(4000, 6000)), torch.randn(64, 256)
    targets = torch.zeros(64, dtype=torch.long)
    perf(lambda: functional.cross_entropy(model(data), targets).backward())


def test_in_the_loop(perf):
    """What could be computed once is computed in each turn."""
    a, b, data = torch.randn(256, 256), torch.randn(256, 256), torch.randn(64, 256)
    once = a @ b

    def step():
        for _ in range(4):
            torch.tanh(data @ (a @ b if PLANTED else once))

    perf(step)
