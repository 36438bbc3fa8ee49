"""Software: environment variables, tracers, builds and versions that affect measurements, and the git history."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_perfdl.machine.fitness.finding import Level, MachineFinding, counted
from pytest_perfdl.machine.known_problems import CUPTI, installed_versions, known_problems
from pytest_perfdl.machine.proc import fields, read
from pytest_perfdl.system.git import git, trouble

_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_THREADING = (
    *_COUNTS,
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OMP_DYNAMIC",
    "MKL_DYNAMIC",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_WAIT_POLICY",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
)


def threads(here: Mapping[str, str], worker: Mapping[str, str]) -> Sequence[MachineFinding]:
    """Thread settings of this shell and of workers."""
    replaced = [name for name in _THREADING if name in here and worker.get(name) != here[name]]
    kept = [name for name in _THREADING if name in here and name not in _COUNTS and name not in replaced]
    found = []
    if replaced:
        values = ", ".join(
            f"{name}={here[name]} in this shell, {worker.get(name, 'unset')} in measured processes" for name in replaced
        )
        why = "measured processes use the number of threads from --perf-threads or the marker (default: 1)"
        do = "pytest --perf --perf-threads N to use another number"
        found.append(MachineFinding("note", "threads", f"measured processes override: {values}", why, do))
    if kept:
        values = ", ".join(f"{name}={here[name]}" for name in kept)
        why = "these environment variables affect threads, but are not part of the machine ID"
        found.append(
            MachineFinding(
                "note",
                "threads",
                f"measured processes inherit {values}",
                why,
                f"unset {' '.join(kept)}, or always set them",
            )
        )
    if not found:
        values = " ".join(f"{name}={worker[name]}" for name in _COUNTS if name in worker)
        found.append(MachineFinding("ok", "threads", f"measured processes run with {values}"))
    return found


_SLOWING: tuple[tuple[str, Level, str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", "bad", "every launch waits for its kernel"),
    ("HIP_LAUNCH_BLOCKING", "bad", "every launch waits for its kernel"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "bad", "every allocation on the device goes to the driver"),
    ("PYTHONTRACEMALLOC", "bad", "Python records a stack for every allocation"),
    ("PYTHONDEVMODE", "bad", "Python checks every allocation"),
    ("PYTHONMALLOC", "warn", "Python uses a different allocator"),
)


def variables(here: Mapping[str, str]) -> Sequence[MachineFinding]:
    """Environment variables that slow down steps and that workers inherit."""
    found = [
        MachineFinding(level, "environment", f"{name}={here[name]}", why, f"unset {name}")
        for name, level, why in _SLOWING
        if here.get(name, "0") not in ("", "0")
    ]
    return found or [MachineFinding("ok", "environment", "no environment variable is set that slows down steps")]


def tracer(root: Path, active: str) -> Sequence[MachineFinding]:
    """Whether a debugger, a profiler or a coverage tool traces this process.

    Parameters
    ----------
    active
        The tracer in Python, `machine.active_tracer()`; empty if there is none.
    """
    pid = fields(read(root / "proc/self/status")).get("TracerPid", "0")
    why = "calls or system calls in the step take longer"
    if pid != "0":
        name = read(root / f"proc/{pid}/comm") or "process"
        return [MachineFinding("bad", "tracer", f"{name} ({pid}) traces this process", why, "run without the tracer")]
    if active:
        return [MachineFinding("bad", "tracer", f"{active} is active", why, "run without the tracer")]
    return [MachineFinding("ok", "tracer", "none")]


def python_build(version: str, configured: Mapping[str, object]) -> Sequence[MachineFinding]:
    """Whether this Python is built for speed; `configured` as `sysconfig.get_config_vars()` gives them."""
    if configured.get("Py_DEBUG"):
        why = "the interpreter's checks take most of the CPU time"
        return [MachineFinding("bad", "Python", f"{version}, a debug build", why, "use a release build")]
    if configured.get("Py_GIL_DISABLED"):
        why = "free-threaded Python runs single-threaded code slower; baselines of the default build do not apply"
        return [MachineFinding("note", "Python", f"{version}, free-threaded", why)]
    return [MachineFinding("ok", "Python", f"{version}, a release build")]


def versions(installed: Callable[[str], str | None], device: bool) -> Sequence[MachineFinding]:
    """Versions known to distort measurements.

    Parameters
    ----------
    installed
        Version of a distribution, `None` when it is not installed.
    device
        Whether there is an NVIDIA GPU.
    """
    present = installed_versions(installed)
    if not present:
        return [MachineFinding("note", "versions", "torch is not installed in this Python", "", "pip install torch")]
    concerned = {name: version for name, version in present.items() if device or name != CUPTI}
    found = [
        MachineFinding(known.level, "versions", f"{known.software} {concerned[known.software]}", known.why, known.do)
        for known in known_problems(concerned)
    ]
    text = ", ".join(f"{name} {version}" for name, version in present.items())
    return found or [MachineFinding("ok", "versions", f"{text}: no known problems")]


def history(project: Path) -> Sequence[MachineFinding]:
    """Whether git has the baseline commits."""
    why = "without the baseline commit there are no paired rounds, and limits are wider (10%)"
    if shutil.which("git") is None:
        return [MachineFinding("warn", "git", "git is not installed", why, "install git")]
    if said := trouble(project):
        return [MachineFinding("warn", "git", f"git failed: {said}", why, "git status")]
    shallow = git(project, "rev-parse", "--is-shallow-repository")
    if shallow is None:
        return [MachineFinding("warn", "git", "not in a git repository", why, "git init, and commit the baselines")]
    if shallow == "true":
        do = "git fetch --unshallow (GitHub Actions: fetch-depth: 0 for actions/checkout)"
        return [MachineFinding("warn", "git", "shallow clone", why, do)]
    commits = git(project, "rev-list", "--count", "HEAD")
    if commits is None:
        return [MachineFinding("warn", "git", "repository without commits", why, "git commit")]
    return [MachineFinding("ok", "git", f"full history, {counted(int(commits), 'commit')}")]
