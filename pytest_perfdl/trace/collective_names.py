"""Names of the events that collectives leave in a trace."""

from __future__ import annotations

import re

KERNEL = re.compile(
    r"nccl|rccl|hccl|oneccl|msccl|\bccl::|cross_device_reduce|deep_ep|dpsk::ep|nvshmem|userbuffers|symm_mem"
    r"|^(?!triton_).*(?<!block)(?<!warp)(all_?(reduce|gather|to_?all)|reduce_?scatter)",
    re.IGNORECASE,
)
"""Anywhere in a kernel's name: NCCL, RCCL, HCCL, oneCCL, MSCCL, vLLM's own all-reduce, DeepEP, NVSHMEM, Transformer
Engine's user buffers, or what it does, as PyTorch's symmetric memory, TensorRT-LLM, FlashInfer and QuickReduce name
theirs. Not what Inductor calls `triton_` and then after the operators around it, nor reductions of a block or warp."""

ANNOTATION = re.compile(r"(nccl|gloo|mpi|ucc|hccl|xccl):", re.IGNORECASE)
"""Begin of the annotation that a back end of `torch.distributed` writes, such as `gloo:all_reduce`."""

PARAMETERS = re.compile(r"record_param_comms$", re.IGNORECASE)
"""The event with a collective's arguments, inside the operator that issues it."""

OPERATOR = re.compile(r"(c10d|symm_mem)::", re.IGNORECASE)
"""Begin of the operators that issue a collective: `c10d::allreduce_`, `symm_mem::one_shot_all_reduce`."""

FUNCTIONAL = re.compile(r"_?c10d_functional::", re.IGNORECASE)
"""Begin of the same in compiled and functional code, `_c10d_functional::all_reduce`, which call a `c10d::` operator."""


def is_operator(name: str) -> bool:
    """Whether an operator issues a collective or waits for it."""
    return any(pattern.match(name) for pattern in (OPERATOR, FUNCTIONAL, PARAMETERS))


def is_annotated(name: str) -> bool:
    """Whether an annotation or an operator is that of a collective, from its issue to its end."""
    return any(pattern.match(name) for pattern in (ANNOTATION, OPERATOR))


def is_collective(name: str) -> bool:
    """Whether an event of any kind belongs to a collective."""
    return bool(KERNEL.search(name) or is_annotated(name) or is_operator(name))
