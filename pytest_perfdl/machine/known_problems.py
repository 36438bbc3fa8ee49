"""Versions of software that are known to distort measurements or traces, each with the public thread that shows it.

One table for what `perfdl check` says of installed versions, and for what the findings of a trace or record say of
those that recorded it. Where a thread names neither the first version nor the one with the fix, an entry covers the
releases that it was seen with and no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

TORCH = "torch"
CUPTI = "CUPTI"
"""NVIDIA's library from which the profiler gets kernels; part of CUDA, in one of several packages."""
ROCM = "ROCm"
PTI = "intel-pti"
"""Intel's library from which the profiler gets kernels."""

Use = Literal["profiles", "kernels", "graphs", "graph loops", "collectives", "latency", "modes", "zero times", "MI300X"]
USES: Mapping[Use, str] = {
    "profiles": "any profile",
    "kernels": "any profile with kernels",
    "graphs": "replays of CUDA graphs",
    "graph loops": "CUDA graphs with a while node",
    "collectives": "collectives on the device",
    "latency": "launch latency",
    "modes": "a `TorchDispatchMode`, or tensor subclasses such as DTensor",
    "zero times": "some traces, for an unknown reason",
    "MI300X": "profiles with kernels on MI300X",
}
"""What a problem concerns, in words."""


@dataclass(frozen=True, slots=True)
class KnownProblem:
    """Versions of a software, from `since` to before `until`, that distort measurements or traces."""

    software: str
    since: tuple[int, ...]
    until: tuple[int, ...] | None
    """`None` if no version is known to be free of it."""
    use: Use
    """What it concerns; the rest of a measurement is not affected."""
    level: Literal["warn", "note"]
    effect: str
    do: str
    """A command or an instruction; empty if nothing helps."""
    source: str
    """Address of the public thread."""

    def concerns(self, version: str) -> bool:
        """Whether a version is in the range; one without its update ("13.1") counts as the first of its release."""
        numbers = _numbers(version)
        return bool(numbers) and self.since <= numbers and (self.until is None or numbers < self.until)

    @property
    def versions(self) -> str:
        """The range in words: "before 2.4", "12.6.80 to before 13.1", "from 2.9"."""
        since, until = (".".join(map(str, bound or ())) for bound in (self.since, self.until))
        if not any(self.since):
            return f"before {until}" if until else "any version"
        return f"{since} to before {until}" if until else f"from {since}"

    @property
    def why(self) -> str:
        """The effect with its source."""
        return f"{self.effect} ({self.source})"


KNOWN_PROBLEMS = (
    KnownProblem(
        TORCH,
        (0,),
        (2, 4),
        "profiles",
        "warn",
        "the profiler rounds to microseconds, so shorter kernels and operators have duration 0",
        "pip install 'torch>=2.4'",
        "https://github.com/pytorch/pytorch/issues/116830",
    ),
    # The thread names 2.13 and calls it expected; 2.9.1 records the same without the entries `PythonDispatchMode`.
    KnownProblem(
        TORCH,
        (2, 9),
        None,
        "modes",
        "note",
        "operators under a TorchDispatchMode or on tensor subclasses are recorded twice, and counted twice",
        "profile without the mode, or compare counts only with others under the same mode",
        "https://github.com/pytorch/pytorch/issues/195746",
    ),
    KnownProblem(
        TORCH,
        (2, 12),
        (2, 13),
        "zero times",
        "note",
        "exported traces can have many events with time 0 and duration 0",
        "record the trace again, or install another torch",
        "https://github.com/pytorch/pytorch/issues/188481",
    ),
    # NVIDIA's notes to CUDA 13.1: introduced with 12.6 Update 2, which carries CUPTI 12.6.80.
    KnownProblem(
        CUPTI,
        (12, 6, 80),
        (13, 1),
        "kernels",
        "warn",
        "kernels at the start of a profile can have wrong timestamps, and are then silently dropped",
        "install a torch build for CUDA 13.1 or later",
        "https://github.com/pytorch/pytorch/issues/192021",
    ),
    # The thread cites NVIDIA's notes to CUDA 13.1 Update 1, which carries CUPTI 13.1.115.
    KnownProblem(
        CUPTI,
        (0,),
        (13, 1, 115),
        "graphs",
        "note",
        "from the second profile of a process on, kernels of CUDA graphs can be linked to a wrong launch",
        "install a torch build for CUDA 13.1 Update 1 or later, or record one profile per process",
        "https://github.com/pytorch/kineto/issues/1165",
    ),
    KnownProblem(
        CUPTI,
        (0,),
        None,
        "graph loops",
        "note",
        "kernels in a while node of a CUDA graph are recorded in its first iteration only",
        "",
        "https://github.com/pytorch/kineto/issues/1062",
    ),
    KnownProblem(
        CUPTI,
        (0,),
        None,
        "latency",
        "note",
        "kernels can appear to start before their launch, so launch latency is not exact",
        "",
        "https://github.com/pytorch/kineto/issues/1380",
    ),
    KnownProblem(
        ROCM,
        (6, 1),
        (6, 2),
        "collectives",
        "note",
        "kernels of collectives have correlation 0, so they are linked to no launch and belong to no operator",
        "install a torch build for another ROCm",
        "https://github.com/ROCm/roctracer/issues/100",
    ),
    KnownProblem(
        ROCM,
        (6, 3),
        (6, 4, 2),
        "MI300X",
        "note",
        "the firmware of MI300X reports wrong timestamps, so times of kernels can be wrong",
        "install ROCm 6.4.2 or later",
        "https://github.com/ROCm/legacy-rocm-build/issues/4079",
    ),
    KnownProblem(
        ROCM,
        (7, 0),
        (7, 1),
        "kernels",
        "warn",
        "kernels of whole streams can be missing from a profile",
        "compare the number of kernels with that of launches, or install a torch build for another ROCm",
        "https://github.com/ROCm/rocm-systems/issues/1327",
    ),
    # The thread names 7.2.1; https://github.com/sgl-project/sglang/pull/35390 measures it with 7.2.0.
    KnownProblem(
        ROCM,
        (7, 2),
        (7, 2, 2),
        "kernels",
        "warn",
        "some or all kernels can be missing from a profile",
        "install ROCm 7.2.2 or later, and a torch build that uses its ROCTracer",
        "https://github.com/ROCm/legacy-rocm-build/issues/6102",
    ),
    KnownProblem(
        PTI,
        (0,),
        (0, 12, 3),
        "kernels",
        "warn",
        "some kernels can be missing from a profile",
        "install a torch build with intel-pti 0.12.3 or later",
        "https://github.com/intel/intel-xpu-backend-for-triton/pull/4263",
    ),
)


def known_problems(
    versions: Mapping[str, str], uses: Collection[Use] = frozenset(get_args(Use))
) -> tuple[KnownProblem, ...]:
    """Entries of the table that concern these versions, in its order.

    Parameters
    ----------
    versions
        Version of each software, by its name in the table (`TORCH`, `CUPTI`, `ROCM`, `PTI`).
    uses
        What was measured, or will be; entries that concern other things are left out.
    """
    return tuple(
        known
        for known in KNOWN_PROBLEMS
        if known.use in uses and known.software in versions and known.concerns(versions[known.software])
    )


def installed_versions(installed: Callable[[str], str | None]) -> dict[str, str]:
    """Versions of what the table lists, as far as it is installed.

    Parameters
    ----------
    installed
        Version of a distribution, `None` when it is not installed.
    """
    torch = installed("torch")
    if torch is None:
        return {}
    rocm = re.search(r"\+rocm(\d+(?:\.\d+)*)", torch)
    found = {TORCH: torch, CUPTI: _cupti(installed, torch), ROCM: rocm and rocm[1], PTI: installed("intel-pti")}
    return {name: version for name, version in found.items() if version}


def recorded_versions(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Versions of what the table lists, as far as a trace's metadata names them.

    kineto writes numbers of the runtimes, whose release CUPTI and ROCTracer have too, as CUDA (12040 is 12.4) and HIP
    (70226015 is 7.2) number them, and PTI's version as text. It does not write torch's.
    """
    cuda, hip, pti = (metadata.get(name) for name in ("cuda_runtime_version", "hip_runtime_version", "pti_version"))
    found = {}
    if isinstance(cuda, int) and cuda >= 1000:
        found[CUPTI] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    if isinstance(hip, int) and hip >= 10_000_000:
        found[ROCM] = f"{hip // 10_000_000}.{hip % 10_000_000 // 100_000}"
    if isinstance(pti, str) and re.fullmatch(r"\d{1,4}(\.\d{1,4}){1,3}", pti):
        found[PTI] = pti
    return found


def _cupti(installed: Callable[[str], str | None], torch: str) -> str | None:
    """Version of CUPTI: of its own package, or the CUDA release in torch's local version ("2.9.0+cu128")."""
    for package in ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu12", "nvidia-cuda-cupti-cu11"):
        version = installed(package)
        if version is not None:
            return version
    match = re.search(r"\+cu(\d+)(\d)\b", torch)
    return f"{match[1]}.{match[2]}" if match else None


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
