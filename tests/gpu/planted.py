"""Regressions that are planted in a step on a GPU, with what the report must name."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """A step and its slower form; both are bodies of `step(self)`, with `prepare(self)` before."""

    prepare: str
    base: str
    head: str
    needs_device: bool = True
    undoes: str = ""
    """The optimization of `perfdl whatif` that makes the slower form the other one, if there is one."""


MATRICES = 'self.x = torch.randn({n}, {n}, device="cuda")'
ATTENTION = 'self.q = torch.randn(8, 16, 1024, 64, device="cuda", dtype=torch.bfloat16)'
IMAGES = (
    "self.net = torch.nn.Conv2d(64, 64, 3, padding=1).cuda().half().to(memory_format={format}); "
    'self.x = torch.randn(32, 64, 56, 56, device="cuda").half().to(memory_format={format})'
)
UPDATE = """self.net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(16))).cuda()
for each in self.net.parameters():
    each.grad = torch.ones_like(each)
self.fused, self.plain = (torch.optim.AdamW(self.net.parameters(), fused=fused) for fused in (True, False))"""
CAPTURE = """self.x = torch.randn(128, 128, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    many(self.x)
torch.cuda.current_stream().wait_stream(side)
self.graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(self.graph):
    many(self.x)"""

PLANTED = {
    "TF32 off": Planted(
        MATRICES.format(n=4096),
        "torch.backends.cuda.matmul.allow_tf32 = True; self.x @ self.x",
        "torch.backends.cuda.matmul.allow_tf32 = False; self.x @ self.x",
    ),
    "autocast lost": Planted(
        MATRICES.format(n=4096),
        'with torch.autocast("cuda", torch.bfloat16): self.x @ self.x',
        "self.x @ self.x",
        undoes="amp:dtype=bfloat16",
    ),
    "contiguous copy": Planted(
        MATRICES.format(n=192), "self.x.t() @ self.x", "self.x.t().contiguous() @ self.x", needs_device=False
    ),
    "a wait for a value": Planted(
        MATRICES.format(n=192),
        "(self.x @ self.x).sum(); (self.x @ self.x).sum()",
        "(self.x @ self.x).sum().item(); busy(); (self.x @ self.x).sum()",
        needs_device=False,
        undoes="remove_sync",
    ),
    "flash attention lost": Planted(
        ATTENTION,
        "F.scaled_dot_product_attention(self.q, self.q, self.q)",
        "with sdpa_kernel(SDPBackend.MATH): F.scaled_dot_product_attention(self.q, self.q, self.q)",
    ),
    "channels last lost": Planted(
        IMAGES.format(format="torch.channels_last"),
        "self.net(self.x)",
        "self.net(self.x.contiguous(memory_format=torch.contiguous_format))",
    ),
    "pageable copies": Planted(
        "self.x = torch.randn(2048, 2048); self.pinned = self.x.pin_memory()",
        'self.pinned.to("cuda", non_blocking=True)',
        'self.x.to("cuda")',
        undoes="pin_memory:non_blocking=True",
    ),
    "fused update lost": Planted(UPDATE, "self.fused.step()", "self.plain.step()", undoes="fused_optimizer"),
    "small launches": Planted(MATRICES.format(n=192), "self.x * 4", "for _ in range(4): self.x * 2"),
    "graph lost": Planted(CAPTURE, "self.graph.replay()", "many(self.x)", undoes="cuda_graph"),
    "compile break": Planted(
        MATRICES.format(n=1024) + "; self.f = torch.compile(broken if BREAK else whole)",
        "self.f(self.x)",
        "self.f(self.x)",
    ),
}
"""What `head` of each does more than `base`; those without `needs_device` run on the stand-in as well."""

STEP = """
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BREAK = {breaks}


def many(x):
    for _ in range(50):
        x = (x + 1).relu()
    return x


def busy():
    end = time.perf_counter() + 0.003
    while time.perf_counter() < end:
        pass


def whole(x):
    return (x * 2).relu().sum()


def broken(x):
    x = x * 2
    torch._dynamo.graph_break()
    return x.relu().sum()


class Model:
    def prepare(self):
        {prepare}

    @torch.no_grad()
    def step(self):
        {step}
"""
TEST = """
import pytest
from step import Model


@pytest.mark.perf
def test_step(perf):
    model = Model()
    model.prepare()
    perf(model.step)
"""


def source(planted: Planted, name: str, *, head: bool) -> str:
    """The module with the step, of one side."""

    body = planted.head if head else planted.base
    prepare, step = (textwrap.indent(text, " " * 8).lstrip() for text in (planted.prepare, body))
    return STEP.format(breaks=head and name == "compile break", prepare=prepare, step=step)
