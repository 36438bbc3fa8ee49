"""The machine ID, which decides whether times are comparable, and the context, which is only shown."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_perfdl.machine import proc
from pytest_perfdl.machine.processors import least_quota
from pytest_perfdl.machine.state import seed_everything
from pytest_perfdl.measure import device, process_group
from pytest_perfdl.model.record import Key, MeasurementPlan, Scalar


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
    return _key(_host(Path("/")), threads, key_extra, context), context


def _key(host: Mapping[str, Scalar], threads: int, key_extra: tuple[str, ...], context: Mapping[str, Scalar]) -> Key:
    parts = {**host, "threads": threads} | _accelerators()
    parts |= {name: context[name] for name in key_extra if name in context}
    extra = [f"{name}-{context[name]}" for name in key_extra if name in context]
    return Key(_slug(parts, extra), parts)


def _host(root: Path) -> dict[str, Scalar]:
    """The CPUs: which, and how many of them may be used."""
    import torch

    blocks = proc.processors(root)
    fields = next(iter(blocks), {})
    processors: dict[str, Scalar] = {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "family": fields.get("cpu family", ""),
        "model": fields.get("model", ""),
        "stepping": fields.get("stepping", ""),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }
    arm = [block for block in blocks if "CPU part" in block and "model name" not in block]
    if arm:
        # Cores of several kinds may be in one machine.
        kinds = (("family", "CPU implementer"), ("model", "CPU part"))
        processors |= {name: "+".join(sorted({block.get(field, "") for block in arm})) for name, field in kinds}
        steppings = {f"{block.get('CPU variant', '')}p{block.get('CPU revision', '')}" for block in arm}
        processors["stepping"] = "+".join(sorted(steppings))
    elif not blocks and platform.system() == "Darwin":
        processors["cpu"] = _brand() or processors["cpu"]
    quota = least_quota(root)
    if quota is not None and quota < float(processors["cores"] or 0):
        processors["cores"] = int(quota) if quota == int(quota) else round(quota, 2)
    return processors


@functools.cache
def _brand() -> str:
    """What macOS calls its CPU, such as "Apple M2 Pro"."""
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _accelerators() -> dict[str, Scalar]:
    used = device.current()
    if used is None:
        return {"accelerator": None, "accelerators": 0}
    found = used.properties()
    parts: dict[str, Scalar] = {"accelerator": found.name, "accelerators": found.count}
    # A partition (MIG) keeps the name of its card and differs in size.
    if found.multiprocessors is not None:
        parts["multiprocessors"] = found.multiprocessors
    if found.memory_bytes is not None:
        parts["memory_gib"] = round(found.memory_bytes / 2**30)
    return parts


def _slug(parts: Mapping[str, Scalar], extra: list[str]) -> str:
    words = []
    if parts.get("accelerator"):
        size = f"-{parts['multiprocessors']}sm" if "multiprocessors" in parts else ""
        words.append(f"{parts['accelerator']}{size}-x{parts['accelerators']}")
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
        "device": device.HOST,
        "flags": _flags(),
    }
    used = device.current()
    return context if used is None else context | used.versions()


def _flags() -> str:
    """Backend switches that choose other kernels, as one comparable text."""
    import torch

    flags = {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "matmul": torch.get_float32_matmul_precision(),
        "sdp": device.sdpa_kernels(),
    }
    if (used := device.current()) is not None:
        flags |= used.flags()
    return " ".join(f"{name}={value}" for name, value in flags.items())


# Prepares the process before a test's fixtures are set up, to reduce noise.


def prepare(plan: MeasurementPlan, rank_timeout: float | None = None) -> None:
    """Import torch, fix its thread counts, join the process group if the test has ranks, and seed every generator.

    Parameters
    ----------
    rank_timeout
        Timeout of collectives in seconds; `None` where no launcher started this process, which is the only rank then.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

    torch.set_num_threads(plan.threads)
    # Refused once parallel work has begun, which only happens when measuring in pytest's own process.
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    if plan.ranks and rank_timeout is not None:
        process_group.join(plan, rank_timeout)
    elif plan.ranks:
        process_group.join_alone(plan.backend)
    seed_everything(plan.seed)


# Suppresses the profiler's messages, which it writes directly to descriptor 2.


_CHATTER = re.compile(rb"USDT:|STAGE:|\[W[^]]*CPUAllocator\.cpp:\d+\] Memory block of unknown size")
"""Lines of the profiler itself; the last says of every block freed that was allocated before it started."""


@contextlib.contextmanager
def profiler_chatter() -> Iterator[None]:
    """Keep the profiler quiet while it starts, stops or exports.

    Python warnings from the profiler are ignored too: under `-W error` they would fail a test that did nothing
    wrong.
    """
    with profiled_steps(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def profiled_steps() -> Iterator[None]:
    """Hold back what is written to descriptor 2, drop the profiler's lines, and pass on the rest afterwards."""
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        try:
            os.dup2(held.fileno(), 2)
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not _CHATTER.match(line):
                    os.write(2, line)
