"""Where a measurement ran: the key that decides comparability, and the context that is only shown."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from pytest_perfdl.measure.timed import uses_device
from pytest_perfdl.record import Key, Scalar


def describe(threads: int, key_extra: tuple[str, ...]) -> tuple[Key, Mapping[str, Scalar]]:
    """Key and context of this process, after the test's fixtures have set their flags.

    Parameters
    ----------
    threads
        Intra-op threads, part of the key.
    key_extra
        Names from the context that the project wants in the key too.
    """
    context = _context(threads)
    parts = _host() | {"threads": threads} | _accelerators()
    parts |= {name: context[name] for name in key_extra if name in context}
    extra = [f"{name}-{context[name]}" for name in key_extra if name in context]
    return Key(_slug(parts, extra), parts), context


def _host() -> dict[str, Scalar]:
    import torch

    fields = _cpuinfo()
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "family": fields.get("cpu family", ""),
        "model": fields.get("model", ""),
        "stepping": fields.get("stepping", ""),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _accelerators() -> dict[str, Scalar]:
    if not uses_device():
        return {"accelerator": None, "accelerators": 0}
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "accelerator": properties.name,
        "accelerators": torch.cuda.device_count(),
        # A partition (MIG) keeps the name of its card and differs in size.
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30),
    }


def _slug(parts: Mapping[str, Scalar], extra: list[str]) -> str:
    words = []
    if parts.get("accelerator"):
        words.append(f"{parts['accelerator']}-{parts['multiprocessors']}sm-x{parts['accelerators']}")
    numbers = "".join(f"{name[0]}{parts[name]}" for name in ("family", "model", "stepping") if parts[name])
    words += [f"{parts['cpu']}-{numbers}", f"{parts['capability']}"]
    words += [f"{parts['cores']}c-{parts['threads']}t", *extra]
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def _context(threads: int) -> dict[str, Scalar]:
    import torch

    context: dict[str, Scalar] = {
        "python": platform.python_version(),
        # Plain text: torch's own version type would make the orchestrating process import torch to read it.
        "torch": str(torch.__version__),
        "os": f"{platform.system()} {platform.release()}",
        "threads": threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": "cuda" if uses_device() else "cpu",
        "flags": _flags(),
    }
    if uses_device():
        context |= {
            "device": "hip" if torch.version.hip else "cuda",
            "cuda": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
            "driver": _driver(),
        }
    return context


def _flags() -> str:
    """Backend switches that choose other kernels, as one comparable text."""
    import torch

    flags = {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "matmul": torch.get_float32_matmul_precision(),
        "sdp": "".join(
            letter
            for letter, enabled in (
                ("f", torch.backends.cuda.flash_sdp_enabled()),
                ("m", torch.backends.cuda.mem_efficient_sdp_enabled()),
                ("n", torch.backends.cuda.math_sdp_enabled()),
            )
            if enabled
        ),
    }
    if uses_device():
        flags |= {"cudnn": torch.backends.cudnn.enabled, "benchmark": torch.backends.cudnn.benchmark}
    return " ".join(f"{name}={value}" for name, value in flags.items())


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", text)
    return match[1] if match else ""
