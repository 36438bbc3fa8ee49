"""GPU state, from the vendors' command-line tools; no device is opened."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_perfdl.machine.fitness.finding import ANSWER_SECONDS, Level, MachineFinding, Runner, counted
from pytest_perfdl.machine.proc import read

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

_REASONS: tuple[tuple[int, Level, str], ...] = (
    (0x08, "bad", "hardware slowdown"),
    (0x40, "bad", "hardware thermal slowdown"),
    (0x80, "bad", "power brake"),
    (0x20, "warn", "thermal slowdown"),
    (0x04, "warn", "power cap"),
    (0x10, "note", "synchronized boost"),
    (0x100, "note", "display clock setting"),
)
"""Bits of NVML's `nvmlClocksEventReason*`; idle (0x1) and application clocks (0x2) are harmless."""

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
        return [
            MachineFinding("bad", "GPU", f"nvidia-smi did not finish within {ANSWER_SECONDS:g} s", why, "nvidia-smi")
        ]
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
    return [
        MachineFinding(
            "note",
            "AMD GPU",
            "rocm-smi found",
            "clocks are not checked: kernel times vary if clocks depend on the load",
            "rocm-smi --showclocks --showpids; sudo rocm-smi --setperflevel high",
        )
    ]


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
    reasons = [(level, name) for bit, level, name in _REASONS if active & bit]
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
    named = f"used by {counted(len(users), 'process', 'es')}: {', '.join(users)}" if users else "in use"
    return [
        MachineFinding(
            "bad" if working else "warn",
            topic,
            f"{named}; utilization now {busy:g}%" if busy is not None else named,
            "kernels of other processes delay the step's kernels",
            "stop these processes, or select another GPU with CUDA_VISIBLE_DEVICES",
        )
    ]


def _mode(row: Mapping[str, str], name: str) -> str:
    return {"Enabled": "on", "Disabled": "off"}.get(row.get(name, ""), "unknown")


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
