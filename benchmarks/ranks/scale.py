"""Time and memory of `perfdl trace` on the traces of many ranks of a big job, against those of one of them.

Memory is that of all processes together: the sum of their proportional set sizes (PSS, which counts shared pages once),
read from /proc every 50 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import chrome_files
from common.processes import perfdl
from common.tables import table
from device_rank import listed
from job_rank import Event
from job_spec import Model, Spec, Straggler
from simulated_job import simulate

GIB = 1 << 30
PERIOD_S = 0.05
MODEL = Model(layers=24, forward_ns=400_000, parameter_bytes=8 << 20)
SIMULATED, SLOW = 8, 3
"""Ranks, and the slow one of them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one command and all processes that it starts."""

    seconds: float
    cpu_seconds: float
    """As last seen of each process. Nobody waits for the children of a fork server, so `os.times` leaves them out."""
    pss_bytes: int
    """Largest sum over processes."""
    rss_bytes: int
    """Largest sum, which counts shared pages in every process."""
    largest_rss_bytes: int
    """Of one process."""
    processes: int
    """Most at a time."""


def generate(folder: Path, ranks: int, megabytes: float, *, compress: bool) -> list[Path]:
    """Traces of one FSDP job: as many steps as make a file of this size, and one rank whose kernels are slower.

    Eight ranks are simulated. The others of a bigger job repeat what these do, but for the slow one: their events are
    the same bytes with another rank in the arguments. Collectives say all ranks as their group.
    """
    spec = Spec(name="scale", parallel="fsdp", ranks=SIMULATED, steps=1, model=MODEL)
    steps = max(3, round(megabytes * 1e6 / len(_events(spec, 0, simulate(spec)[0][0], ranks))))
    spec = replace(spec, steps=steps, straggler=Straggler(SLOW, steps // 2, "compute", 0.1, "all"))
    traces, _ = simulate(spec)
    files = []
    for like, events in enumerate(traces):
        body = _events(spec, like, events, ranks)
        for rank in range(ranks):
            if (rank % SIMULATED if rank == SLOW or rank % SIMULATED != SLOW else SLOW - 1) != like:
                continue
            head = json.dumps(chrome_files.chrome_trace(replace(spec, ranks=ranks), rank, []) | {"traceEvents": 0})
            text = head.encode().replace(b'"traceEvents": 0', b'"traceEvents": ' + body)
            files.append(folder / f"rank{rank}.json{'.gz' if compress else ''}")
            text = text.replace(b'"Rank":%d,' % like, b'"Rank":%d,' % rank)
            files[-1].write_bytes(gzip.compress(text, 1) if compress else text)
    return sorted(files, key=_number)


def _events(spec: Spec, rank: int, events: list[Event], ranks: int) -> bytes:
    """The list of events of one rank as JSON, with collectives of all `ranks`."""
    group = {"Process Group Ranks": listed(range(ranks)), "Group size": ranks}
    for event in events:
        if "Process Group Ranks" in event.args:
            event.args.update(group)
    return json.dumps(chrome_files.chrome_trace(spec, rank, events)["traceEvents"], separators=(",", ":")).encode()


def _number(path: Path) -> int:
    """Of a rank, in the name of its file."""
    return int(path.name.partition(".")[0].removeprefix("rank"))


def used(command: Sequence[str]) -> Usage:
    """Run a command, and watch all of its processes."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    begun = time.monotonic()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    most = [0, 0, 0, 0]
    cpu: dict[int, float] = {}
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(PERIOD_S):
            processes = _tree(running.pid)
            sizes = [size for process in processes if (size := _sizes(process))]
            cpu.update({process: spent for process in processes if (spent := _cpu_seconds(process))})
            pss, rss = sum(size[0] for size in sizes), [size[1] for size in sizes]
            for place, now in enumerate((pss, sum(rss), max(rss, default=0), len(rss))):
                most[place] = max(most[place], now)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = running.wait()
    seconds = time.monotonic() - begun
    stopped.set()
    watcher.join()
    if code:
        raise SystemExit(f"{' '.join(command[-3:])} ended with {code}")
    return Usage(seconds, sum(cpu.values()), *most)


def _tree(process: int) -> list[int]:
    """A process and all that it started and they started."""
    found, todo = [], [process]
    while todo:
        found.append(todo.pop())
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{found[-1]}/task").iterdir():
                todo += map(int, (thread / "children").read_text().split())
    return found


def _cpu_seconds(process: int) -> float:
    """CPU time of the threads of a process; 0 if it has gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _sizes(process: int) -> tuple[int, int] | None:
    """PSS and RSS in bytes; None if the process has gone."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:] if line.startswith(("Pss:", "Rss:"))}
    return (found.get("Pss", 0), found.get("Rss", 0)) if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=20.0, help="of each file, not compressed (default: 20)")
    parser.add_argument("--gz", action="store_true", help="compress the files")
    parser.add_argument("--rounds", type=int, default=3, help="of one rank and all ranks; the fastest counts")
    parser.add_argument("--folder", metavar="FOLDER", help="keep the traces there, and use them if they are there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.glob("rank*.json*"), key=_number)
        if len(files) != arguments.ranks:
            if shutil.disk_usage(folder).free < 1.2e6 * arguments.megabytes * arguments.ranks:
                raise SystemExit(f"{folder} has too little space; name another folder with --folder")
            begun = time.monotonic()
            files = generate(folder, arguments.ranks, arguments.megabytes, compress=arguments.gz)
            print(f"generated in {time.monotonic() - begun:.0f} s")
        size = sum(path.stat().st_size for path in files)
        print(f"{len(files)} files of {size / len(files) / 1e6:.1f} MB on {os.cpu_count()} cores")
        command = perfdl("trace", "--json")
        ones, alls = [], []
        for _ in range(arguments.rounds):
            ones.append(used([*command, str(files[0])]))
            alls.append(used([*command, *map(str, files)]))
    cores = os.cpu_count() or 1
    one, everyone = min(ones, key=lambda usage: usage.seconds), min(alls, key=lambda usage: usage.seconds)
    head = ("", "wall s", "CPU s", "PSS of all, GiB", "RSS of all, GiB", "largest process, GiB", "processes")
    rows = []
    for name, usage in (("one rank", one), (f"{len(files)} ranks", everyone)):
        sizes = (usage.pss_bytes, usage.rss_bytes, usage.largest_rss_bytes)
        told = (f"{number:.2f}" for number in (usage.seconds, usage.cpu_seconds, *(size / GIB for size in sizes)))
        rows.append((name, *told, usage.processes))
    print("\n".join(table(head, rows, numbers=True)))
    allowed = one.seconds * len(files) / cores
    print(f"wall time: {everyone.seconds / allowed:.2f} x (one rank x {len(files)} / {cores} cores)")
    print(f"CPU time: {everyone.cpu_seconds / (one.cpu_seconds * len(files)):.2f} x (one rank x {len(files)})")


if __name__ == "__main__":
    main()
