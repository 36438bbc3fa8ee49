"""What was measured as Markdown."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.tables import table
from measuring import COMMAND, Outcome, Timing, Tool

OURS = "pytest-perfdl"
READ, ANALYSES = "read", "read + analyses"
_ROW_LIMIT_BYTES = 5_000_000


@dataclass(frozen=True)
class File:
    """A trace that is read."""

    path: Path
    bytes: int
    """Of the decompressed JSON."""
    events: int


Results = Mapping[tuple[str, str], Outcome]
"""By file name and tool name."""


def machine() -> str:
    """The machine and the versions, one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = named[0] if named else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {_version(name)}" for name in ("numpy", "msgspec", "orjson", "isal"))
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {versions}"
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def overview(files: Sequence[File], tools: Sequence[Tool], results: Results) -> Iterable[str]:
    """One line a file: our seconds, and how many times as long the others took."""
    others = [tool for tool in tools if tool.name not in (OURS, COMMAND)]
    stages = {tool.name: [READ] if tool.script == "run_json.py" else [READ, ANALYSES] for tool in others}
    head = ["file", "MB", "events", "read s", "MB/s", "analyses s"]
    head += [f"{tool.name}{'' if stage == READ else ' + analyses'}" for tool in others for stage in stages[tool.name]]
    rows = []
    for file in files:
        read = _timing(results, file, OURS, READ)
        analysed = _timing(results, file, OURS, ANALYSES)
        row = [file.path.name, f"{file.bytes / 1e6:.1f}", f"{file.events:,}"]
        row += [_seconds(read), f"{file.bytes / 1e6 / read.best:.0f}" if read else "-", _seconds(analysed)]
        for tool in others:
            for stage in stages[tool.name]:
                row.append(_ratio(results, file, tool.name, stage, read if stage == READ else analysed))
        rows.append(row)
    return table(head, rows, numbers=True)


def details(file: File, tools: Sequence[Tool], results: Results) -> Iterable[str]:
    """Every tool and stage on one file."""
    yield f"### {file.path.name}: {file.bytes / 1e6:.1f} MB of JSON, {file.events:,} events"
    yield ""
    head = [
        "tool",
        "stage",
        "best s",
        "median s",
        "CPU s",
        "MB/s",
        "events/s",
        "peak MB",
        "peak / JSON",
        "time to ours",
    ]
    rows = []
    for tool in tools:
        outcome = results.get((file.path.name, tool.name), Outcome())
        for stage, timing in outcome.stages.items():
            ours = _timing(results, file, OURS, stage)
            peak = timing.peak_bytes / file.bytes
            rows.append(
                [
                    tool.name,
                    stage,
                    _seconds(timing),
                    f"{timing.median:.3f}",
                    f"{timing.cpu:.3f}",
                    f"{file.bytes / 1e6 / timing.best:.1f}",
                    f"{file.events / timing.best:,.0f}",
                    f"{timing.peak_bytes / 1e6:.0f}",
                    f"{peak:.2f}",
                    f"{timing.best / ours.best:.1f}" if ours else "-",
                ]
            )
        if "" in outcome.failures:
            rows.append([tool.name, "failed", *["-"] * (len(head) - 2)])
    yield from (*table(head, rows, numbers=True), "")


def is_large(file: File) -> bool:
    """Whether the file is worth a table of its own."""
    return file.bytes >= _ROW_LIMIT_BYTES


def failures(results: Results) -> Iterable[str]:
    """What failed, with the last line of each error, and on which files."""
    where: dict[tuple[str, str, str], list[str]] = {}
    for (file, tool), outcome in results.items():
        for analysis, text in outcome.failures.items():
            where.setdefault((tool, analysis, text), []).append(file)
    for (tool, analysis, text), files in where.items():
        yield f"- {tool}{f', {analysis}' if analysis else ''}: `{text}` on {', '.join(files)}"


def linear(rows: Sequence[tuple[File, Outcome]]) -> Iterable[str]:
    """Our cost by event as traces grow; the last columns compare the CPU's with that of the smallest."""
    head = ["events", "MB", "read s", "us / event", "CPU us / event"]
    head += ["read + analyses s", "us / event", "CPU us / event", "peak / JSON"]
    head += ["read: CPU to smallest", "both: CPU to smallest"]
    return table(head, _by_size(rows), numbers=True)


def _by_size(rows: Sequence[tuple[File, Outcome]]) -> Iterator[list[str]]:
    first: list[float] = []
    for file, outcome in rows:
        if any(stage not in outcome.stages for stage in (READ, ANALYSES)):
            yield [f"{file.events:,}", "failed", *["-"] * 9]
            continue
        timings = [outcome.stages[stage] for stage in (READ, ANALYSES)]
        costs = [timing.cpu / file.events * 1e6 for timing in timings]
        first = first or costs
        row = [f"{file.events:,}", f"{file.bytes / 1e6:.1f}"]
        for timing, cost in zip(timings, costs, strict=True):
            row += [_seconds(timing), f"{timing.best / file.events * 1e6:.2f}", f"{cost:.2f}"]
        row.append(f"{timings[-1].peak_bytes / file.bytes:.2f}")
        row += [f"{cost / base:.2f}" for cost, base in zip(costs, first, strict=True)]
        yield row


def _timing(results: Results, file: File, tool: str, stage: str) -> Timing | None:
    outcome = results.get((file.path.name, tool))
    return outcome.stages.get(stage) if outcome else None


def _ratio(results: Results, file: File, tool: str, stage: str, ours: Timing | None) -> str:
    outcome = results.get((file.path.name, tool), Outcome())
    if "" in outcome.failures:
        return "failed"
    timing = outcome.stages.get(stage)
    if timing is None or ours is None:
        return "-"
    mark = "*" if stage == ANALYSES and outcome.failures else ""
    return f"{timing.best / ours.best:.1f}{mark}"


def _seconds(timing: Timing | None) -> str:
    return f"{timing.best:.3f}" if timing else "-"
