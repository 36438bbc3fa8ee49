"""A run of many tests with many kernels, as large suites have them; the same for the same numbers."""

from __future__ import annotations

import random
from pathlib import Path

from pytest_perfdl.judge.blame import blame
from pytest_perfdl.model.limits import Limit
from pytest_perfdl.model.record import Call, Key, MeasurementPlan, Occasion, Record, Row, Series
from pytest_perfdl.results.run import Exemplars, Result, Run
from pytest_perfdl.results.verdict import Judgement, MetricVerdict
from pytest_perfdl.trace import Event, compress, write

KEY = Key("nvidia-h100-80gb-hbm3-x1", {"accelerator": "NVIDIA H100 80GB HBM3", "count": 1})
CONTEXT = {"torch": "2.13.0", "driver": "570.86", "python": "3.12.4"}
TIMED = ("step_time", "block_time", "step_p50", "step_p95", "step_p99", "cpu_time", "kernel_time")
COUNTED = ("ops", "kernels", "launches", "flops", "allocations", "alloc_bytes", "peak_memory")
WORST = 1.25
"""How much slower a regressed test's kernels are, every third of them."""


def run(tests: int, kernels: int, folder: Path, report_dir: Path, *, regressed: int = 10) -> Run:
    """A judged run; every `regressed`-th test got slower and has traces."""
    results = [_result(number, kernels, folder, slower=number % regressed == 0) for number in range(tests)]
    return Run(
        root=folder,
        key=KEY,
        context=CONTEXT,
        results=tuple(results),
        perf_dir="baselines",
        report_dir=report_dir,
        date="2026-05-09T14:03:11Z",
        commit="77aa01c8e2f1",
        seconds=1800.0,
    )


def _result(number: int, kernels: int, folder: Path, *, slower: bool) -> Result:
    test = f"tests/perf/test_models_{number // 25}.py::TestLayer{number % 7}::test_train_step[bf16-{number}]"
    base = _record(test, kernels, number, repeats=10)
    new = _record(test, kernels, number, repeats=5, slower=slower)
    names = TIMED + COUNTED
    metrics = tuple(_metric(name, base, new, slower=slower) for name in names)
    judgement = Judgement(
        test,
        "regressed" if slower else "unchanged",
        "step_time +8.3% [+7.1%, +9.6%] (95% interval, 12 paired rounds), limit 3%" if slower else "",
        metrics,
        blame=blame(new, base) if slower else (),
    )
    exemplars = ()
    if slower:
        paths = [folder / f"{number}.{side}.json.gz" for side in ("base", "new")]
        for path, side in zip(paths, (base, new), strict=True):
            path.write_bytes(_trace(side))
        exemplars = (Exemplars("", *paths),)
    return Result(
        id=test,
        file=test.split("::")[0],
        line=12,
        judgement=judgement,
        fails=slower,
        new=new,
        base=base,
        base_path=f"baselines/{KEY.slug}/{number}.json",
        exemplars=exemplars,
        seconds=3.2,
    )


def _metric(name: str, base: Record, new: Record, *, slower: bool) -> MetricVerdict:
    before, after = (side.metrics()[name].values[0] for side in (base, new))
    timed = name in TIMED
    held = name in ("step_time", "block_time", "peak_memory")
    return MetricVerdict(
        name,
        "timed" if timed else "counted",
        "ns" if timed else "B" if name.endswith(("bytes", "memory")) else "1",
        "lower",
        before,
        after,
        effect=after / before - 1,
        ci95=(after / before - 1.02, after / before - 0.98) if timed else None,
        excluded=0.021 if timed else None,
        limit=Limit("3%", 0.03) if held else None,
        verdict=None if timed and not held else "regressed" if slower and timed else "unchanged",
        times_over=2.8 if slower and timed and held else None,
        evidence="paired" if slower and timed and held else None,
    )


def _kernels(number: int, kernels: int) -> list[str]:
    return [
        f"void at::native::vectorized_elementwise_kernel<{4 + place % 4}, at::native::Functor_{place % 200}"
        f"<c10::BFloat16>, std::array<char*, {place % 3 + 1}>>(int, {number % 20}, {place})"
        for place in range(kernels)
    ]


def _record(test: str, kernels: int, number: int, *, repeats: int, slower: bool = False) -> Record:
    draw = random.Random(number)
    noise = random.Random(f"{number} {repeats}")
    rows = []
    for place, name in enumerate(_kernels(number, kernels)):
        mean = draw.lognormvariate(10.5, 1.2) * (WORST if slower and place % 3 == 0 else 1.0)
        rows.append(
            Row("kernel", name, draw.randint(1, 48), tuple(round(mean * noise.gauss(1, 0.01)) for _ in range(repeats)))
        )
    steps = tuple(sum(row.ns[repeat] for row in rows) for repeat in range(repeats))
    series = {
        name: Series("timed", "ns", "lower", tuple(step * (1 + place / 50) for step in steps))
        for place, name in enumerate(TIMED)
    }
    series |= {name: Series("counted", "1", "lower", (1000 + place,) * repeats) for place, name in enumerate(COUNTED)}
    return Record(
        test=test,
        key=KEY,
        context=CONTEXT,
        test_hash="0123456789abcdef",
        plan=MeasurementPlan(warmup=3, steps=20),
        calls=(Call(name="", series=series, rows=tuple(rows), profiled_ns=steps),),
        occasions=(Occasion(repeats, "2026-05-02", "3f2c1abf9d0c77", "9c0ffee"),),
    )


def _trace(side: Record) -> bytes:
    """One step: each kernel once, launched by an operator."""
    rows = side.calls[0].rows
    host, device = 0, 3_000
    events = [
        Event.process_name(0, "host"),
        Event.thread_name(0, 0, "step"),
        Event.process_name(1, "device 0"),
        Event.thread_name(1, 7, "stream 7"),
    ]
    for number, row in enumerate(rows, start=1):
        event = Event("X", f"aten::op_{number % 40}", 0, 0, host, 9_000, "cpu_op")
        call = Event("X", "cudaLaunchKernel", 0, 0, host + 2_000, 5_000, "cuda_runtime", {"correlation": number})
        device = max(device, host + 8_000)
        kernel = Event("X", row.name, 1, 7, device, row.ns[0], "kernel", {"correlation": number, "stream": 7})
        device, host = device + row.ns[0] + 500, host + 10_000
        events += [event, call, kernel]
    events.append(Event("X", "ProfilerStep#3", 0, 0, 0, host, "user_annotation"))
    return compress(write(None, events, {"schemaVersion": 1}))
