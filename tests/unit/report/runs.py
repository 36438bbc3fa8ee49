"""Synthetic runs: what the reporters are given in tests, one result for each verdict and some hostile ones."""

import random
from dataclasses import replace
from pathlib import Path

from pytest_perfdl.model.limits import parse_requirement
from pytest_perfdl.model.record import Call, Finding, Key, MeasurementPlan, Occasion, Record, Row, Series
from pytest_perfdl.model.waivers import Waiver
from pytest_perfdl.results.curve import (
    CurveTime,
    Figure,
    Fitted,
    JudgedCurve,
    RankComparison,
    RankSide,
    RankTimes,
    Size,
)
from pytest_perfdl.results.run import Exemplars, Result, Run
from pytest_perfdl.results.verdict import FAILS_BY_DEFAULT, Cause, Judgement, MetricVerdict, SourceDiff
from pytest_perfdl.scaling.growth import Growth, IntervalEstimate
from pytest_perfdl.trace import Event, compress, write

KEY = Key("cpu-amd-epyc-9v74-8c", {"cpu": "AMD EPYC 9V74", "cores": 8, "threads": 1, "accelerator": None})
CONTEXT = {"torch": "2.13.0", "python": "3.11.9", "driver": None}
GPT = "tests/perf/test_gpt.py::test_train_step[bf16]"
HOSTILE = "</script><img src=x onerror=alert(1)>\"'`|\u202e{{7*7}} @octocat"


def with_limit(name, *, limit=None, **rest):
    """A verdict with the limit, budget or expectation of a text."""
    return MetricVerdict(name, limit=None if limit is None else parse_requirement(name, limit), **rest)


def timed(name="step_time", base=41_200_000, new=45_080_000, **rest):
    values = {
        "kind": "timed",
        "unit": "ns",
        "better": "lower",
        "base": base,
        "new": new,
        "effect": new / base - 1 if base and new else None,
        "ci95": (0.089, 0.099),
        "excluded": 0.021,
        "limit": "3%",
        "verdict": "regressed",
    }
    return with_limit(name, **{**values, **rest})


def counted(name="ops", base=1699, new=1701, **rest):
    values = {
        "kind": "counted",
        "unit": "1",
        "better": "lower",
        "base": base,
        "new": new,
        "effect": new / base - 1 if base and new else None,
        "verdict": "changed",
    }
    return with_limit(name, **{**values, **rest})


def quiet(name="step_time", base=12_340_000, new=12_360_000, **rest):
    values = {"ci95": (-0.012, 0.015), "limit": "10%", "verdict": "unchanged"}
    return timed(name, base, new, **{**values, **rest})


def cause(name, base=(24, 8_100_000), new=(24, 11_020_000), share=0.77, kind="operator", call="", **rest):
    return Cause(kind, name, call, base[0], new[0], base[1], new[1], share, **rest)


BLAME = (
    cause("aten::_scaled_dot_product_flash_attention_for_cpu_backward"),
    cause("aten::elementwise_mul", (0, 0), (48, 610_000), 0.16),
    cause("aten::mm", (96, 14_210_000), (96, 14_480_000), 0.07),
    cause("aten::copy_", (12, 310_000), (0, 0), -0.08),
    cause("idle: input", (0, 900_000), (0, 1_100_000), 0.05, kind="idle"),
    cause("aten::item", (0, 0), (1, 61_000), 0.02),
    cause("aten::add", (4, 10_000), (5, 12_000), 0.001),
)


PLACED = cause("aten::mm", module="GPT.blocks.0.mlp", line="train.py(12): step", bound="launch")
SOURCE = SourceDiff(
    "src/train.py",
    "step",
    "@@ -12,2 +12,3 @@\n def step(model):\n-\treturn model <= 1\n+\tloss = model & 1\n+\treturn loss",
    line=13,
)


def record(
    test, *, step=41_200_000, repeats=5, commit="3f2c1abf9d0c77" + "0" * 26, call="", seed=0, rows=(), spread=0.006
):
    draw = random.Random(f"{test}{seed}{step}")
    values = tuple(round(step * (1 + draw.gauss(0, spread))) for _ in range(repeats))
    return Record(
        test=test,
        key=KEY,
        context=CONTEXT,
        test_hash="0123456789abcdef",
        plan=MeasurementPlan(warmup=3, steps=20),
        calls=(
            Call(
                name=call,
                series={
                    "step_time": Series("timed", "ns", "lower", values),
                    "ops": Series("counted", "1", "lower", (1699,) * repeats),
                },
                rows=tuple(rows) or (Row("operator", "aten::mm", 96, (14_210_000,) * repeats),),
                profiled_ns=tuple(round(value * 1.08) for value in values),
            ),
        ),
        occasions=(Occasion(repeats, "2026-05-02", commit, "9c0ffee" + "0" * 33),),
    )


def span(ns, share=0.01):
    """A time with an interval of so much to either side."""
    return CurveTime(ns, round(ns * (1 - share)), round(ns * (1 + share)))


def curve(axis="batch", *, unit="sample", sizes=(2.0, 4.0, 8.0, 16.0), base=True):
    """A curve with a square that the baseline's has not."""

    def before(size):
        return span(round(16e6 + 1e6 * size)) if base else None

    def now(size):
        return span(round(16e6 + 1e6 * size + 31_250 * size**2))

    def change(size):
        ratio = now(size).value / before(size).value - 1
        return IntervalEstimate(ratio, ratio - 0.03, ratio + 0.03)

    figures = (
        Figure(
            "overhead",
            "ns",
            IntervalEstimate(16e6, 15.5e6, 16.5e6),
            IntervalEstimate(14.8e6, 13e6, 16.6e6),
            IntervalEstimate(-1.2e6, -3e6, 6e5),
        ),
        Figure(
            "per unit",
            "ns",
            IntervalEstimate(1e6, 9.5e5, 1.05e6),
            IntervalEstimate(1.56e6, 1.4e6, 1.7e6),
            IntervalEstimate(5.6e5, 4e5, 7e5),
        ),
        Figure(
            "complexity",
            "1",
            IntervalEstimate(0.4, 0.38, 0.42),
            IntervalEstimate(0.62, 0.58, 0.66),
            IntervalEstimate(0.22, 0.17, 0.27),
        ),
    )
    return JudgedCurve(
        name=f"step_time over {axis}",
        metric="step_time",
        axis=axis,
        unit=unit,
        sizes=tuple(
            Size(size, before(size), now(size), change(size) if base else None, paired=base and size == sizes[-1])
            for size in sizes
        ),
        fitted=tuple(
            Fitted(size, before(size), now(size)) for size in sorted({*sizes, *(size * 1.5 for size in sizes[:-1])})
        ),
        figures=figures if base else tuple(replace(each, base=None, change=None) for each in figures),
        growth=Growth(
            "complexity",
            sizes[-1],
            IntervalEstimate(0.25, 0.2, 0.3),
            IntervalEstimate(31_250.0, 25e3, 37.5e3),
            2,
            IntervalEstimate(2.0, 1.8, 2.3),
        )
        if base
        else None,
    )


def result(verdict="regressed", test=GPT, *, reason=None, metrics=None, blame=(), fails=None, **rest):
    file = test.split("::", 1)[0]
    judgement = Judgement(
        test,
        verdict,
        REASONS[verdict] if reason is None else reason,
        metrics=METRICS.get(verdict, ()) if metrics is None else tuple(metrics),
        blame=tuple(blame),
        integrity=rest.pop("integrity", ()),
        context_changes=rest.pop("context_changes", ()),
        source_diffs=rest.pop("source_diffs", ()),
    )
    values = {
        "new": record(test, step=45_080_000, repeats=10, commit=None) if verdict not in ("unmeasured",) else None,
        "base": record(test) if verdict not in ("missing", "incomparable", "unmeasured", "new") else None,
        "base_path": f"baselines/{KEY.slug}/{file}/{test.rpartition('::')[2]}.json",
        "seconds": 3.2,
    }
    fails = verdict in FAILS_BY_DEFAULT if fails is None else fails
    return Result(test, file, 12, judgement, fails, **{**values, **rest})


WAIVER = Waiver(
    "tests/perf/test_waived.py::*", "step_time", "12%", "2026-12-01", why="new attention", who="ana@example.com"
)
REASONS = {
    "invalid": "the steps of the repeats differ: 1699 operators in repeat 1, 1705 in repeat 3",
    "regressed": "step_time is 9.4% slower than its baseline, unpaired",
    "missing": "no baseline under any key",
    "outdated": "the test's source changed since its baseline",
    "waived": "step_time +9.4%, waived up to 12% until 2026-12-01 by ana@example.com: new attention",
    "suspect": "past its limit in all of 4 paired rounds",
    "changed": "ops differs from its baseline",
    "inconclusive": "the budget ended before certainty",
    "incomparable": "baselines exist only for nvidia-h100-80gb-hbm3-x1",
    "improved": "step_time is 6.2% faster than its baseline",
    "unchanged": "step_time +0.2%: no slowdown found",
    "new": "absent in the other ref",
    "unmeasured": "skipped: needs a GPU",
}
METRICS = {
    "regressed": (
        timed(times_over=3.1),
        timed("cpu_time", 40_900_000, 44_700_000, limit=None, verdict=None),
        counted(base=1699, new=1748),
        counted("peak_memory", 2_147_483_648, 2_147_483_648, unit="B", limit="2%", verdict="unchanged"),
    ),
    "waived": (timed(waiver=WAIVER),),
    "suspect": (timed(verdict="suspect"),),
    "changed": (quiet(), counted()),
    "inconclusive": (timed(new=41_900_000, ci95=(-0.02, 0.06), verdict="inconclusive", excluded=0.08),),
    "improved": (timed(base=9_800_000, new=9_190_000, ci95=(-0.068, -0.055), verdict="improved"),),
    "unchanged": (quiet(),),
}


def run(*results, **rest):
    values = {
        "root": Path("/project"),
        "key": KEY,
        "context": CONTEXT,
        "perf_dir": "baselines",
        "report_dir": Path("/project/perf-report"),
        "date": "2026-05-09T14:03:11Z",
        "commit": "77aa01c8e2f1" + "0" * 28,
        "seconds": 64.1,
    }
    return Run(**{**values, "results": tuple(results), **rest})


def each_verdict():
    """One result for each verdict."""
    return [
        result(
            verdict,
            GPT if verdict == "regressed" else f"tests/perf/test_{verdict}.py::test_step",
            blame=BLAME if verdict == "regressed" else (),
            context_changes=(("torch", "2.12.0", "2.13.0"),) if verdict in ("regressed", "changed") else (),
            integrity=(Finding("invalid", "sequences", "2 different step sequences"),) if verdict == "invalid" else (),
        )
        for verdict in REASONS
    ]


def rank_times(own, communication, *, compute, input_=0.2, host=1.0, overlap=0.83):
    """One rank's times, in milliseconds."""
    ns = [round(ms * 1e6) for ms in (own, compute, input_, host, communication)]
    return RankTimes(*ns, overlap)


def rank_side(*ranks, step=40.0, waits=None, collectives=2.0):
    """The ranks of one side; `waits` in milliseconds."""
    count = len(ranks)
    found = waits or [[0.0] * count for _ in range(count)]
    return RankSide(
        tuple(ranks),
        round(step * 1e6),
        tuple(tuple(round(ms * 1e6) for ms in row) for row in found),
        collectives * count,
        4_194_304.0 * count,
    )


def with_ranks(test="tests/perf/test_ddp.py::test_train_step", *, count=2, call=""):
    """A test of several ranks, the second of which computes 12.1 ms longer; the others wait for it."""
    quick, slow = rank_times(36.0, 4.0, compute=34.8), rank_times(48.1, 4.0, compute=46.9)
    base = rank_side(*[quick] * count, waits=[[0.0 if i == j else 0.25 for j in range(count)] for i in range(count)])
    waiting = rank_times(36.0, 16.1, compute=34.8, overlap=0.41)
    new = rank_side(
        *[slow if rank == 1 else waiting for rank in range(count)],
        step=52.1,
        waits=[[12.35 if j == 1 and i != 1 else 0.0 for j in range(count)] for i in range(count)],
    )
    blame = (cause("aten::addmm", (24, 8_100_000), (24, 20_200_000), 0.98, rank=1, call=call),)
    one = result("regressed", test, metrics=[timed(base=40_000_000, new=52_100_000, times_over=10.1)], blame=blame)
    return replace(one, judgement=replace(one.judgement, ranks=(RankComparison(call, base, new, 1, "compute"),)))


def hostile():
    """A result whose every name is an attack, with a kernel name of 10 kB."""
    kernel = "void kernel<" + "at::native::" * 850 + ">\x1b[31m"
    return result(
        test=f"tests/test_x.py::test_y[{HOSTILE}]",
        reason=HOSTILE,
        metrics=[timed(times_over=2.0), counted(HOSTILE, 0, 3, unit="</td>")],
        blame=[
            cause(HOSTILE, call=HOSTILE, module=HOSTILE, line=HOSTILE),
            cause(kernel, kind="kernel"),
            cause("émoji 🚀 \udcff", share=float("nan")),
        ],
        integrity=(Finding("note", HOSTILE, HOSTILE),),
        context_changes=((HOSTILE, HOSTILE, HOSTILE),),
        source_diffs=(SourceDiff(HOSTILE, HOSTILE, f"@@ -1 +1 @@\n-{HOSTILE}\x1b[31m\n+\udcff"),),
        curves=(curve(HOSTILE, unit=HOSTILE),),
    )


MEMORY = {"Addr": 1, "Bytes": 100, "Device Id": -1, "Device Type": 0, "Total Allocated": 900, "Total Reserved": 0}


def exemplar(path, step_ns=2_000_000, mm_ns=700_000, pid=4242, origin=5_000_000):
    """A gzip-compressed exemplar: one step on a CPU thread with nested operators, and a kernel on a stream."""
    at = origin + 1_000
    events = [
        Event.process_name(pid, "python"),
        Event.thread_name(pid, pid, "thread 4242 (python)"),
        Event.process_name(0, "python GPU 0"),
        Event.thread_name(0, 7, "stream 7"),
        Event("X", "before the step", pid, pid, origin, 500, "user_annotation"),
        Event("X", "ProfilerStep#3", pid, pid, at, step_ns, "user_annotation"),
        Event("X", "aten::linear", pid, pid, at + 10, mm_ns + 20, "cpu_op", {"Input Dims": [[4, 8]]}),
        Event("X", "aten::mm", pid, pid, at + 20, mm_ns, "cpu_op", {"External id": 7}),
        Event("X", "aten::mm", pid, pid, at + mm_ns + 100, mm_ns, "cpu_op"),
        Event("X", "sgemm", 0, 7, at + 300, mm_ns, "kernel"),
        Event("i", "[memory]", pid, pid, at + 50, category="cpu_instant_event", args=MEMORY | {"Bytes": 512}),
    ]
    path.write_bytes(compress(write(None, events, {"schemaVersion": 1})))
    return path


def with_traces(one, folder, **new):
    """The result with an exemplar on both sides."""
    sides = Exemplars("", exemplar(folder / "base.json.gz"), exemplar(folder / "new.json.gz", **new))
    return replace(one, exemplars=(sides,))
