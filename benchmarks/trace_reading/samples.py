"""Traces that we write, each in the way that a user meets it."""

from __future__ import annotations

import sys
from pathlib import Path

from measuring import ROOT

sys.path.insert(0, str(ROOT))

from pytest_perfdl.report.chrome import regression_trace
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import Cause, Judgement
from pytest_perfdl.trace import Event, Trace, exemplar, read, write

_STEP, _SLOWER_STEP = 1, 0
_BLAMED = "aten::native_layer_norm"


def write_all(folder: Path, synthetic: Path) -> list[Path]:
    """The files, made of a synthetic trace with at least two steps."""
    trace = read(synthetic)
    sides = [exemplar(trace, step) for step in (_STEP, _SLOWER_STEP)]
    base, new = (side or b"" for side in sides)
    paths = {name: folder / name for name in ("exemplar.json.gz", "regression.json.gz", "again.json", "by_hand.json")}
    paths["exemplar.json.gz"].write_bytes(base)
    paths["regression.json.gz"].write_bytes(regression_trace(_regressed(), "", base, new).data)
    _again(trace, paths["again.json"])
    write(paths["by_hand.json"], _by_hand(), {"schemaVersion": 1, "distributedInfo": {"rank": 0}})
    return list(paths.values())


def _regressed() -> Result:
    test = "tests/perf/test_gpt.py::test_train_step[bf16]"
    cause = Cause("operator", _BLAMED, "", 13, 13, 500_000, 900_000, 0.8)
    judgement = Judgement(test, "regressed", "step_time is 72 % slower", blame=(cause,))
    return Result(test, "tests/perf/test_gpt.py", 12, judgement, True)


def _again(trace: Trace, path: Path) -> None:
    """Every complete event of a trace that was read, with its arguments."""
    # Overhead, spans and the like have ids that are no numbers from 0 on, which a trace of ours cannot have.
    rows = [row for row in range(len(trace)) if trace.pid[row] >= 0 and trace.tid[row] >= 0]
    events = [
        Event(
            "X",
            trace.name_of(row),
            int(trace.pid[row]),
            int(trace.tid[row]),
            int(trace.start[row]),
            int(trace.duration[row]),
            trace.categories[trace.category[row]],
            trace.args(row) or None,
        )
        for row in rows
    ]
    write(path, events, trace.metadata)


def _by_hand() -> list[Event]:
    """Two steps with a device, a flow, a counter, instants, names beyond ASCII, and events that do not nest."""
    events = [
        Event.process_name(0, "host"),
        Event.thread_name(0, 1, "main \N{SNOWMAN}"),
        Event.process_name(1, "device 0"),
        Event.thread_name(1, 7, "stream 7"),
    ]
    for step in range(2):
        at = step * 100_000
        link = {"correlation": 10 + step, "External id": 1 + step}
        events += [
            Event("X", f"ProfilerStep#{step}", 0, 1, at, 90_000, "user_annotation"),
            Event("X", "aten::mm", 0, 1, at + 1_000, 20_000, "cpu_op", {"Input Dims": [[2, 3], [3, 4]]}),
            Event("X", "cudaLaunchKernel", 0, 1, at + 5_000, 4_001, "cuda_runtime", link),
            Event("X", "gemm<\"a\", 'b'>", 1, 7, at + 12_345, 40_000, "kernel", {"stream": 7, "device": 0, **link}),
            Event("X", "later", 0, 1, at + 30_000, 20_000, "cpu_op"),
            Event("X", "ends after \N{GREEK SMALL LETTER LAMDA}", 0, 1, at + 40_000, 30_000, "cpu_op"),
            Event("X", "no time", 0, 1, at + 80_000, 0, "cpu_op"),
            Event("i", "mark", 0, 1, at + 85_000, args={"why": "seen"}),
            Event("C", "queue", 0, 1, at + 6_000, args={"length": 1}),
            Event("C", "queue", 0, 1, at + 12_345, args={"length": 0}),
            Event("s", "ac2g", 0, 1, at + 5_000, category="ac2g", flow=10 + step),
            Event("f", "ac2g", 1, 7, at + 12_345, category="ac2g", flow=10 + step),
        ]
    return events
