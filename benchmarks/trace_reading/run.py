"""How fast are traces read, by us and by others, on the same files in the same run?

    python benchmarks/trace_reading/run.py --setup ~/rivals             # makes the others' environments, then measures
    python benchmarks/trace_reading/run.py --setup ~/rivals --tracelens-source CHECKOUT --out results.md
    python benchmarks/trace_reading/run.py --linear                     # only ours, 10 k, 100 k and 1 M events
    python benchmarks/trace_reading/run.py --quick

Every measurement is a fresh process; the tools take turns on a file, and the rounds go over all files, so that the
machine's drift meets all alike. Needs the project's dependencies.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import environments
import tables
from measuring import COMMAND, HERE, ROOT, Outcome, Tool, has_command, measure
from tables import OURS, File

EVENTS = (300_000, 450_000)
"""Of the synthetic traces: about 90 MB, and as many events as the largest real trace that is known to us."""
LINEAR = (10_000, 100_000, 1_000_000)
_QUICK_FILES = ("h100_bert_small.json.gz", "mi300_bert_small.json.gz", "cpu_only.json.gz")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    corpus = os.environ.get("PERFDL_TRACE_CORPUS") or ROOT.parent / "shared" / "traces"
    add("--corpus", type=Path, default=Path(corpus), help="folder of real traces (%(default)s)")
    add("--events", type=int, nargs="*", help=f"of the synthetic traces (default: {EVENTS})")
    add("--rounds", type=int, help="measurements of each tool on each file (default: 3; with --quick 1)")
    for tool, title in (("hta", "HTA"), ("traceinsight", "traceinsight"), ("tracelens", "TraceLens")):
        add(f"--{tool}", type=Path, metavar="PYTHON", help=f"interpreter that has {title}")
    add("--setup", type=Path, metavar="DIR", help="make environments for the others there, or use those that are")
    add("--tracelens-source", default="", metavar="WHAT", help="what pip installs for TraceLens: a checkout, say")
    add("--timeout", type=float, default=900, metavar="SECONDS", help="of one process (%(default)s)")
    add("--linear", action="store_true", help="only: the cost of reading by event, from 10 k to 1 M events")
    add("--quick", action="store_true", help="small files, one round")
    add("--out", type=Path, metavar="FILE", help="write the result there too")
    return parser.parse_args(arguments)


def tools(arguments: argparse.Namespace) -> list[Tool]:
    """All that are there, ours first."""
    here = Path(sys.executable)
    found = [
        Tool(OURS, here, "run_ours.py"),
        Tool("json.loads", here, "run_json.py", ("json",)),
        Tool("orjson.loads", here, "run_json.py", ("orjson",)),
    ]
    made = environments.make(arguments.setup, arguments.tracelens_source) if arguments.setup else {}
    for name, title, script in (
        ("hta", "HTA", "run_hta.py"),
        ("traceinsight", "traceinsight", "run_hta.py"),
        ("tracelens", "TraceLens", "run_tracelens.py"),
    ):
        python = getattr(arguments, name) or made.get(name)
        if python is None:
            print(f"{title}: no interpreter was given, it is left out", file=sys.stderr)
        else:
            found.append(Tool(title, python, script))
    if has_command():
        found.insert(1, Tool(COMMAND, here))
    else:
        print(f"`{COMMAND}` is not there, it is left out", file=sys.stderr)
    return found


def synthetic(folder: Path, events: int, suffix: str = ".json") -> Path:
    """Made by another process, so that this one stays small: what it holds would count for those it starts."""
    path = folder / f"synthetic_{events // 1000}k{suffix}"
    subprocess.run(
        [sys.executable, HERE / "synthetic.py", "--events", str(events), path], check=True, stdout=sys.stderr
    )
    return path


def corpus(folder: Path, quick: bool) -> list[Path]:
    found = sorted(path for path in folder.glob("*.json*") if ".expected." not in path.name)
    if not found:
        print(f"no traces in {folder}: only synthetic ones are measured", file=sys.stderr)
    return [path for path in found if not quick or path.name in _QUICK_FILES]


def files_of(paths: Sequence[Path], timeout: float) -> list[File]:
    """With their sizes, which the plain parser tells; it also brings the files into the system's cache."""
    found = []
    for path in paths:
        outcome = Outcome()
        measure(Tool("", Path(sys.executable), "run_json.py", ("json",)), path, outcome, timeout)
        if outcome.failures:
            print(f"{path.name} is left out: {outcome.failures['']}", file=sys.stderr)
        else:
            found.append(File(path, int(str(outcome.about["bytes"])), int(str(outcome.about["events"]))))
    return found


def compare(arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    sizes = arguments.events if arguments.events is not None else (10_000,) if arguments.quick else EVENTS
    paths = [synthetic(folder, size) for size in sizes]
    if sizes:
        paths.append(synthetic(folder, sizes[-1], ".json.gz"))
    measured = files_of([*paths, *corpus(arguments.corpus, arguments.quick)], arguments.timeout)
    used = tools(arguments)
    results = {(file.path.name, tool.name): Outcome() for file in measured for tool in used}
    for number in range(rounds):
        for file in measured:
            print(f"round {number + 1} of {rounds}: {file.path.name}", file=sys.stderr)
            for tool in used:
                measure(tool, file.path, results[file.path.name, tool.name], arguments.timeout)
    versions = {
        tool.name: str(outcome.about["version"])
        for tool in used
        for outcome in [results[file.path.name, tool.name] for file in measured]
        if "version" in outcome.about
    }
    yield f"Machine: {tables.machine()}. {rounds} rounds, best of them unless it says median."
    yield f"Compared: {', '.join(f'{name} {version}' for name, version in versions.items())}."
    yield ""
    yield "## How many times as long as ours"
    yield ""
    yield from tables.overview(measured, used, results)
    yield ""
    yield "`*`: some of its analyses failed, what is timed is the rest; see below."
    yield ""
    for file in filter(tables.is_large, measured):
        yield from tables.details(file, used, results)
    yield "## Failures"
    yield ""
    yield from list(tables.failures(results)) or ["None."]


def linear(arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    sizes = arguments.events or ((10_000, 20_000, 40_000) if arguments.quick else LINEAR)
    ours = Tool(OURS, Path(sys.executable), "run_ours.py")
    rows = [(file, Outcome()) for file in files_of([synthetic(folder, size) for size in sizes], arguments.timeout)]
    for _ in range(rounds):
        for file, outcome in rows:
            measure(ours, file.path, outcome, arguments.timeout)
    yield f"Machine: {tables.machine()}. Best of {rounds} rounds."
    yield ""
    yield from tables.linear(rows)
    broken = list(tables.failures({(file.path.name, OURS): outcome for file, outcome in rows}))
    if broken:
        yield from ("", *broken)


def main() -> int:
    arguments = parse()
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="trace-reading-") as folder:
        for line in (linear if arguments.linear else compare)(arguments, Path(folder)):
            print(line, flush=True)
            lines.append(line)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
