"""Checks whether this machine is fit to measure, by functions over files and commands that change nothing.

`examine` returns all findings about a `Place`, worst first. Checks take the root of the file system, so that tests can
pass a made-up one. What a system does not expose is listed as unknown; no check raises because of missing hardware or
files.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.machine import proc, processors
from pytest_perfdl.machine.device_state import REASONS
from pytest_perfdl.machine.findings import (
    ANSWER_SECONDS,
    LEVELS,
    Level,
    MachineFinding,
    Runner,
    noise_finding,
    run,
)
from pytest_perfdl.machine.known_problems import CUPTI, installed_versions, known_problems
from pytest_perfdl.machine.proc import fields, read
from pytest_perfdl.machine.reference_load import machine_noise
from pytest_perfdl.machine.state import active_tracer
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.system import clocks
from pytest_perfdl.system.distributions import installed
from pytest_perfdl.system.git import FETCH_ALL, git, is_shallow, top_of, trouble

# GPU state, from the vendors' command-line tools; no device is opened.


_FIELDS = (
    "index",
    "name",
    "uuid",
    "persistence_mode",
    "clocks.current.sm",
    "clocks.max.sm",
    "clocks.applications.graphics",
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
    "utilization.gpu",
    "power.limit",
    "power.default_limit",
    "ecc.mode.current",
    "mig.mode.current",
)
"""Queried fields; drivers know `clocks_event_reasons` or its older name, and reject a query with the other."""

_BUSY_PERCENT = 10.0


def nvidia(root: Path, run: Runner) -> Sequence[MachineFinding]:
    """State of all NVIDIA GPUs; a single finding if there is none."""
    answer, known = _query(run)
    if answer is None:
        if read(root / "proc/driver/nvidia/version") is None:
            return [MachineFinding("ok", "GPU", "no NVIDIA GPU")]
        why = "clocks, other processes and throttling cannot be checked"
        do = "install the driver utilities (in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        return [MachineFinding("warn", "GPU", "NVIDIA driver found, nvidia-smi missing", why, do)]
    if answer == "":
        why = "other driver calls may hang, too"
        found = f"nvidia-smi did not finish within {ANSWER_SECONDS:g} s"
        do = "nvidia-smi"
        return [MachineFinding("bad", "GPU", found, why, do)]
    rows = [
        dict(zip(known, (cell.strip() for cell in line.split(",")), strict=False))
        for line in answer.splitlines()
        if line.count(",") == len(known) - 1
    ]
    if not rows:
        first = answer.splitlines()[0]
        return [MachineFinding("warn", "GPU", f"nvidia-smi: {first}", "the GPU cannot be used", "nvidia-smi")]
    users = _users(run)
    return [finding for row in rows for finding in _gpu(row, users.get(row.get("uuid", ""), []))]


def rocm(run: Runner) -> Sequence[MachineFinding]:
    """Whether there are AMD GPUs; their state is not read."""
    answer = run(["rocm-smi", "--showproductname"])
    if answer is None:
        return [MachineFinding("ok", "AMD GPU", "no rocm-smi")]
    found = "rocm-smi found"
    why = "clocks are not checked: kernel times vary if clocks depend on the load"
    do = "rocm-smi --showclocks --showpids; sudo rocm-smi --setperflevel high"
    return [MachineFinding("note", "AMD GPU", found, why, do)]


def present(findings: Sequence[MachineFinding]) -> bool:
    """Whether the findings include an NVIDIA GPU."""
    return any(finding.topic.startswith("GPU ") for finding in findings)


def _query(run: Runner) -> tuple[str | None, list[str]]:
    """The tool's output and its fields; `None` if there is no tool, empty if it prints nothing."""
    wanted = list(_FIELDS)
    while True:
        answer = run(["nvidia-smi", f"--query-gpu={','.join(wanted)}", "--format=csv,noheader,nounits"])
        if answer is None:
            return None, wanted
        refused = re.search(r'Field "([^"]+)" is not a valid field', answer.text)
        if answer.code in (0, None) or refused is None or refused[1] not in wanted:
            return answer.text, wanted
        wanted.remove(refused[1])


def _users(run: Runner) -> dict[str, list[str]]:
    """GPU id -> processes that use it."""
    asked = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    answer = run(["nvidia-smi", asked, "--format=csv,noheader,nounits"])
    users: dict[str, list[str]] = {}
    for line in answer.text.splitlines() if answer is not None and answer.code == 0 else ():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4:
            memory = f", {cells[3]} MiB" if cells[3].isdigit() else ""
            users.setdefault(cells[0], []).append(f"{Path(cells[2]).name} ({cells[1]}{memory})")
    return users


def _gpu(row: Mapping[str, str], users: Sequence[str]) -> list[MachineFinding]:
    index = row.get("index", "0")
    topic = f"GPU {index}"
    found = [*_clocks(row, topic, index), *_sharing(row, topic, users)]
    if row.get("persistence_mode") == "Disabled":
        why = "the driver is reloaded for every process, which takes seconds and resets clocks"
        found.append(MachineFinding("warn", topic, "persistence mode off", why, f"sudo nvidia-smi -i {index} -pm 1"))
    limit, usual = _number(row.get("power.limit")), _number(row.get("power.default_limit"))
    if limit is not None and usual is not None and limit < usual:
        why = "kernels that need more power run at a lower clock"
        do = f"sudo nvidia-smi -i {index} -pl {usual:g}"
        found.append(MachineFinding("warn", topic, f"power limit {limit:g} W, default {usual:g} W", why, do))
    modes = f"ECC {_mode(row, 'ecc.mode.current')}, MIG {_mode(row, 'mig.mode.current')}"
    if row.get("mig.mode.current") == "Enabled":
        why = "other partitions share power and clocks with the step"
        return [*found, MachineFinding("note", topic, f"{row.get('name', '')}, {modes}", why)]
    return [*found, MachineFinding("ok", topic, f"{row.get('name', '')}, {modes}")]


def _clocks(row: Mapping[str, str], topic: str, index: str) -> list[MachineFinding]:
    now, most = _number(row.get("clocks.current.sm")), _number(row.get("clocks.max.sm"))
    clocks = (
        f"SM clock {now:g} MHz (maximum {most:g} MHz)" if now is not None and most is not None else "SM clock unknown"
    )
    bits = row.get("clocks_event_reasons.active") or row.get("clocks_throttle_reasons.active") or ""
    active = int(bits, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", bits) else 0
    reasons = [(level, name) for bit, level, name in REASONS if active & bit]
    if reasons:
        level, _ = reasons[0]
        names = ", ".join(name for _, name in reasons)
        do = f"nvidia-smi -i {index} -q -d PERFORMANCE,TEMPERATURE,POWER"
        return [MachineFinding(level, topic, f"{clocks}, reduced by: {names}", "the clock changes during steps", do)]
    application = _number(row.get("clocks.applications.graphics"))
    target = application if application is not None else most
    do = f"sudo nvidia-smi -i {index} --lock-gpu-clocks={target:g},{target:g} (undo: -rgc)" if target else ""
    why = "the clock depends on load and temperature unless the clock is locked"
    return [MachineFinding("note", topic, clocks, why, do)]


def _sharing(row: Mapping[str, str], topic: str, users: Sequence[str]) -> list[MachineFinding]:
    busy = _number(row.get("utilization.gpu"))
    working = busy is not None and busy >= _BUSY_PERCENT
    if not users and not working:
        return []
    named = f"used by {plural(len(users), 'process', 'processes')}: {', '.join(users)}" if users else "in use"
    level: Level = "bad" if working else "warn"
    found = f"{named}; utilization now {busy:g}%" if busy is not None else named
    why = "kernels of other processes delay the step's kernels"
    do = "stop these processes, or select another GPU with CUDA_VISIBLE_DEVICES"
    return [MachineFinding(level, topic, found, why, do)]


def _mode(row: Mapping[str, str], name: str) -> str:
    return {"Enabled": "on", "Disabled": "off"}.get(row.get(name, ""), "unknown")


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


# Other load on the machine: two samples of the kernel's counters, and their difference.


NOTICED = 0.1
"""CPUs kept busy by others from which on it is reported; ticks of 10 ms show no less in a short window."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The kernel's counters (Linux) at a moment. Times are in ticks, `ticks_per_second` of them a second."""

    wall_s: float
    ticks_per_second: int
    busy: Mapping[int, int]
    """By CPU: all that is neither idle nor waiting for a disk, stolen time included."""
    stolen: int
    total: int
    """All CPU time since the start, idle included."""
    processes: Mapping[int, proc.ProcessState]
    swapped_pages: int | None
    throttled: int | None
    """Most times that any one core was slowed down for its temperature or power, since the start."""

    @classmethod
    def take(cls, root: Path, wall_s: float | None = None, ticks_per_second: int | None = None) -> Sample | None:
        """Read the counters below `root`; `None` where there are none."""
        times = proc.processor_times(root)
        together = times.pop("cpu", None)
        if together is None:
            return None
        return cls(
            clocks.monotonic() if wall_s is None else wall_s,
            os.sysconf("SC_CLK_TCK") if ticks_per_second is None else ticks_per_second,
            {int(name[3:]): time.busy for name, time in times.items()},
            together.stolen,
            together.busy + together.idle,
            dict(proc.processes(root)),
            proc.swapped_pages(root),
            max(proc.throttle_counts(root).values(), default=None),
        )


def others(before: Sample, after: Sample, allowed: frozenset[int], own_group: int) -> Sequence[MachineFinding]:
    """Which other processes use the allowed CPUs, and how much."""
    window = after.wall_s - before.wall_s
    per_processor = after.ticks_per_second * window
    shared = allowed & after.busy.keys() & before.busy.keys()
    if window <= 0 or not shared:
        return []
    groups = _busy_groups(before, after)
    busy = sum(after.busy[processor] - before.busy[processor] for processor in shared)
    taken = max(0.0, (busy - sum(ticks for ticks, _ in groups.pop(own_group, []))) / per_processor)
    found = f"other processes use {taken:.2f} of {plural(len(shared), 'CPU')}"
    if taken < NOTICED:
        return [MachineFinding("ok", "load now", found)]
    busiest = sorted(((sum(ticks for ticks, _ in of), max(of)[1]) for of in groups.values()), reverse=True)[:3]
    names = [
        f"{after.processes[pid].name} ({pid}) {ticks / per_processor:.2f}"
        for ticks, pid in busiest
        if ticks / per_processor > 0.02
    ]
    pids = ",".join(str(pid) for ticks, pid in busiest if ticks / per_processor > 0.02)
    level: Level = "bad" if taken > len(shared) - 1 + NOTICED else "warn"
    found = f"{found}; busiest: {', '.join(names)}" if names else found
    why = "other processes preempt the step and evict its caches"
    do = (
        f"stop these processes, or wait for their end: ps -o pid,etime,args -p {pids}"
        if pids
        else "stop other processes"
    )
    return [MachineFinding(level, "load now", found, why, do)]


def _busy_groups(before: Sample, after: Sample) -> dict[int, list[tuple[int, int]]]:
    """Process group -> (ticks in the window, process id) of its active members."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for pid, process in after.processes.items():
        earlier = before.processes.get(pid)
        ticks = process.ticks - (earlier.ticks if earlier else 0)
        if ticks > 0:
            groups.setdefault(process.group, []).append((ticks, pid))
    return groups


def average(root: Path, processors: int) -> Sequence[MachineFinding]:
    """How busy the machine was in the last minutes."""
    values = (proc.read(root / "proc/loadavg") or "").split()[:3]
    if len(values) < 3:
        return []
    last, five, fifteen = map(float, values)
    found = f"{last:.2f} in 1 min, {five:.2f} in 5, {fifteen:.2f} in 15, on {plural(processors, 'CPU')}"
    level: Level = "ok"
    why = ""
    if last > processors:
        level, why = "warn", "the run queue is longer than the CPU count"
    elif last > processors / 2:
        level, why = "note", "the machine was busy recently"
    return [MachineFinding(level, "load average", found, why)]


def stolen(root: Path, before: Sample, after: Sample) -> Sequence[MachineFinding]:
    """Time that a hypervisor gave to other virtual machines although this one was ready to run."""
    since_boot = after.stolen / max(after.total, 1)
    now = (after.stolen - before.stolen) / max(after.total - before.total, 1)
    virtual = any("hypervisor" in each.get("flags", "").split() for each in proc.processors(root))
    found = f"{format_percent(now, signed=False)} of CPU time now, "
    found += f"{format_percent(since_boot, signed=False)} since boot"
    if max(now, since_boot) > 0.01:
        level: Level = "bad" if now > 0.1 else "warn"
        why = "other virtual machines on the host preempt the step"
        do = "use a machine with dedicated CPUs, or compare on one machine: pytest --perf-against REF"
        return [MachineFinding(level, "stolen time", found, why, do)]
    if virtual:
        why = "other virtual machines may share caches and memory bandwidth, which cannot be observed"
        return [MachineFinding("note", "stolen time", f"{found}; virtual machine", why)]
    return [MachineFinding("ok", "stolen time", found)]


def throttling(before: Sample, after: Sample) -> Sequence[MachineFinding]:
    """Whether CPUs were throttled because of temperature or power."""
    if before.throttled is None or after.throttled is None:
        return []
    now = after.throttled - before.throttled
    if now > 0:
        found = f"CPUs were throttled {plural(now, 'time')} during this check"
        why = "the clock changes during steps"
        do = "let the machine cool; check the fan"
        return [MachineFinding("bad", "throttling", found, why, do)]
    if after.throttled:
        found = f"CPUs were throttled {plural(after.throttled, 'time')} since boot, but not during this check"
        return [MachineFinding("note", "throttling", found, "throttling may happen again under sustained load")]
    return [MachineFinding("ok", "throttling", "CPUs were never throttled since boot")]


def swapping(before: Sample, after: Sample, page_bytes: int) -> Sequence[MachineFinding]:
    """Whether pages go to and from the disk."""
    if before.swapped_pages is None or after.swapped_pages is None:
        return []
    moved = (after.swapped_pages - before.swapped_pages) * page_bytes
    if moved > 0:
        found = f"{format_quantity(moved, 'B')} were swapped during this check"
        why = "steps may wait for the disk"
        do = "free memory, or sudo swapoff -a"
        return [MachineFinding("bad", "swapping", found, why, do)]
    return [MachineFinding("ok", "swapping", "none now")]


# Memory: free memory, huge pages and the allocator.


_HUGE = "sys/kernel/mm/transparent_hugepage/enabled"
_LEAST_FREE = 0.1
_LEAST_FREE_BYTES = 2 * 2**30
_MUCH_SWAP_BYTES = 256 * 2**20


def memory(root: Path) -> Sequence[MachineFinding]:
    """Free memory and swap (Linux)."""
    values = proc.memory(root)
    if not {"MemTotal", "MemAvailable"} <= values.keys():
        return []
    total, free = values["MemTotal"], values["MemAvailable"]
    swapped = values.get("SwapTotal", 0) - values.get("SwapFree", 0)
    found = f"{format_quantity(free, 'B')} of {format_quantity(total, 'B')} free"
    found += f", {format_quantity(swapped, 'B')} swapped out" if swapped > 0 else ""
    if free < min(_LEAST_FREE * total, _LEAST_FREE_BYTES):
        why = "steps may wait for memory to be freed"
        do = "stop processes that use much memory"
        return [MachineFinding("warn", "memory", found, why, do)]
    if swapped > _MUCH_SWAP_BYTES:
        why = "swapped pages may be read back during a step"
        return [MachineFinding("note", "memory", found, why, "sudo swapoff -a && sudo swapon -a")]
    return [MachineFinding("ok", "memory", found)]


def huge_pages(root: Path) -> Sequence[MachineFinding]:
    """Whether the kernel creates huge pages for all memory (Linux)."""
    match = re.search(r"\[(\w+)\]", proc.read(root / _HUGE) or "")
    if match is None:
        return []
    if match[1] != "always":
        return [MachineFinding("ok", "huge pages", f"transparent huge pages: {match[1]}")]
    found = "transparent huge pages: always"
    why = "the kernel merges pages during steps, differently in every process"
    do = f"echo madvise | sudo tee /{_HUGE}"
    return [MachineFinding("note", "huge pages", found, why, do)]


def allocator(here: Mapping[str, str], worker: Mapping[str, str], libc: str) -> Sequence[MachineFinding]:
    """Whether workers' allocator keeps its memory, so that steps take no page faults.

    glibc's allocator either keeps or returns large blocks, decided for the life of a process by what ran first:
    the same network took 2.6 or 4.4 ms/step. Environment variables of workers make this deterministic.

    Parameters
    ----------
    here, worker
        Environments of this process and of a worker.
    libc
        Name of the C library, `platform.libc_ver()[0]`.
    """
    replaced = re.search(r"jemalloc|tcmalloc|mimalloc|hoard|snmalloc", here.get("LD_PRELOAD", ""))
    why = "the number of page faults per step may differ between processes"
    if replaced:
        found = f"LD_PRELOAD loads {replaced[0]}, which ignores the glibc settings of measured processes"
        return [MachineFinding("warn", "page faults", found, why, "unset LD_PRELOAD, or set it for all measurements")]
    if libc != "glibc":
        found = f"C library {libc or 'unknown'}: its allocator cannot be configured"
        return [MachineFinding("note", "page faults", found, why)]
    pinned = " ".join(f"{name}={value}" for name, value in sorted(worker.items()) if name.startswith("MALLOC_"))
    return [MachineFinding("ok", "page faults", f"measured processes run with {pinned}")]


# Software: environment variables, tracers, builds and versions that affect measurements, and the git history.


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
    if top_of(project) is None:
        return [MachineFinding("warn", "git", "not in a git repository", why, "git init, and commit the baselines")]
    if is_shallow(project):
        return [MachineFinding("warn", "git", "shallow clone", why, FETCH_ALL)]
    commits = git(project, "rev-list", "--count", "HEAD")
    if commits is None:
        return [MachineFinding("warn", "git", "repository without commits", why, "git commit")]
    return [MachineFinding("ok", "git", f"full history, {plural(int(commits), 'commit')}")]


__all__ = ["LEVELS", "Level", "MachineFinding", "Place", "examine", "noise_finding"]

_WINDOW_SECONDS = 0.5
"""How long other processes are observed: fifty ticks of the kernel."""


@dataclass(frozen=True, slots=True)
class Place:
    """The machine and project to check."""

    environment: Mapping[str, str]
    worker_environment: Mapping[str, str]
    """Environment variables of a worker process."""
    project: Path
    root: Path = Path("/")
    allowed: frozenset[int] = frozenset()
    """CPUs that this process may use; empty to ask the system."""
    run: Runner = run
    installed: Callable[[str], str | None] = installed


def examine(place: Place, *, timed: bool = True, window_s: float = _WINDOW_SECONDS) -> tuple[MachineFinding, ...]:
    """All findings about a place, worst first.

    Parameters
    ----------
    timed
        Whether to time the reference workload too, for about a second.
    window_s
        How long to observe other processes, in seconds.
    """
    before = Sample.take(place.root)
    clocks.sleep(window_s)
    after = Sample.take(place.root)
    checks = [*_machine(place), *(_now(place, before, after) if before and after else _checks_without_samples())]
    found: list[MachineFinding] = []
    unknown = []
    for topic, check in checks:
        try:
            findings = check()
        except (ValueError, LookupError, ArithmeticError, OSError):
            # A file in an unknown format is treated as missing.
            findings = ()
        found += findings
        unknown += [] if findings else [topic]
    found += versions(place.installed, present(found))
    if timed:
        found.append(noise_finding(machine_noise()))
    if unknown:
        found.append(MachineFinding("note", "unknown", ", ".join(unknown), "not exposed by this system"))
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level)))


_Check = tuple[str, Callable[[], Sequence[MachineFinding]]]


def _machine(place: Place) -> Iterator[_Check]:
    root, here, worker = place.root, place.environment, place.worker_environment
    allowed = place.allowed or processors.allowed()
    yield "CPU quota", lambda: processors.quota(root, len(allowed))
    yield "load average", lambda: average(root, processors.online(root, allowed))
    yield "frequency", lambda: processors.frequency(root)
    yield "turbo", lambda: processors.turbo(root)
    yield "power", lambda: processors.power(root)
    yield "affinity", lambda: processors.affinity(root, allowed)
    yield "SMT", lambda: processors.siblings(root, allowed)
    yield "clock", lambda: processors.clock(root, *processors.clock_figures())
    yield "memory", lambda: memory(root)
    yield "huge pages", lambda: huge_pages(root)
    yield "page faults", lambda: allocator(here, worker, platform.libc_ver()[0])
    yield "GPU", lambda: nvidia(root, place.run)
    yield "AMD GPU", lambda: rocm(place.run)
    yield "threads", lambda: threads(here, worker)
    yield "environment", lambda: variables(here)
    yield "tracer", lambda: tracer(root, active_tracer())
    yield "Python", lambda: python_build(platform.python_version(), sysconfig.get_config_vars())
    yield "git", lambda: history(place.project)


def _now(place: Place, before: Sample, after: Sample) -> Iterator[_Check]:
    allowed = place.allowed or processors.allowed()
    yield "load now", lambda: others(before, after, allowed, os.getpgrp())
    yield "stolen time", lambda: stolen(place.root, before, after)
    yield "throttling", lambda: throttling(before, after)
    yield "swapping", lambda: swapping(before, after, os.sysconf("SC_PAGE_SIZE"))


def _checks_without_samples() -> Iterator[_Check]:
    for topic in ("load now", "stolen time", "throttling", "swapping"):
        yield topic, tuple
