"""SM efficiency and occupancy: by hand, and against the figures that PyTorch's TensorBoard plugin published."""

import json
from fractions import Fraction

import numpy as np
import pytest

from pytest_perfdl.analysis.efficiency.roofline import launch_geometry, occupancy_est, sm_efficiency_est
from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.trace import Category, read
from unit.trace.chrome import corpus_file, kernel, launch, step, trace


def _kernel(ts, dur, blocks=None, occupancy=None, stream=7, **more):
    args = {"blocks per SM": blocks, "est. achieved occupancy %": occupancy}
    event = kernel("k", ts, dur, 1, stream=stream)
    event.update(more)
    event["args"] |= {name: value for name, value in args.items() if value is not None}
    return event


def test_concurrent_kernels_add_up_to_at_most_one():
    found = trace(
        step(1, 0, 500),
        _kernel(0, 40, 0.25),
        _kernel(10, 20, 0.5, stream=8),
        _kernel(20, 5, 7.0, stream=9),
        kernel("Memcpy HtoD", 90, 10, 2, cat="gpu_memcpy"),
    )
    assert sm_efficiency_est(found) == pytest.approx((0.25 * 20 + 0.75 * 15 + 1.0 * 5) / 100, rel=1e-12)


def test_devices_are_averaged():
    found = trace(_kernel(0, 10, 1.0), _kernel(0, 10, 0.5, pid=1), _kernel(10, 10, 1.0, pid=1))
    assert sm_efficiency_est(found) == pytest.approx((10 / 20 + 15 / 20) / 2)


def test_occupancy_is_weighted_by_duration():
    found = trace(_kernel(0, 30, 1.0, 20), _kernel(10, 10, 1.0, 60), _kernel(50, 500, 1.0))
    assert occupancy_est(found) == 30.0


@pytest.mark.parametrize(
    "found",
    [
        trace(),
        trace(step(1, 0, 10), launch(1, 2, 3)),
        trace(_kernel(0, 10)),
        trace(_kernel(0, 10, "inf", "nan")),
        trace(_kernel(0, 10, -1.0, -5)),
        trace(_kernel(5, 0, 1.0, 50)),
    ],
    ids=["no events", "no device", "ROCm", "not finite", "negative", "no duration"],
)
def test_missing_where_the_fields_or_the_time_are_missing(found):
    assert sm_efficiency_est(found) is None
    assert occupancy_est(found) is None


def test_kernels_without_the_field_add_nothing():
    assert sm_efficiency_est(trace(_kernel(0, 10, 1.0), _kernel(10, 10))) == 0.5
    assert launch_geometry(trace(_kernel(0, 10, 1), _kernel(10, 10)))[0].tolist()[0] == 1.0


def test_whole_numbers_and_fractions_are_read_alike():
    geometry = launch_geometry(trace(_kernel(0, 1, 8, 63), _kernel(1, 1, 1.5, 7.0)))
    assert [column.tolist() for column in geometry] == [[8.0, 1.5], [63.0, 7.0]]


@pytest.mark.corpus
def test_published_figures_of_the_tensorboard_plugin():
    """The plugin's own definitions, computed from our columns, give its figures; what differs is said here.

    1. The published SM efficiencies are ten times and the published utilizations a hundred times what the trace
       says: its test scales them for legibility ("Faked data for easy to see in UI").
    2. The plugin draws a curve from the start of its recording in buckets of 1 ms; ours is one figure.
    3. Its averages divide by the span of the steps (13.410 ms), ours by the device's span (11.946 ms): that is
       `busy` by our definitions.
    4. It takes kernels only, ours counts the two copies as busy as well (50 us against 48 us).
    5. It has no occupancy for this file, whose kernels have `theoretical occupancy %` only; neither have we.
    """
    path = corpus_file("legacy_gpu_metrics.json")
    found = read(path)
    published = json.loads(path.with_name("legacy_gpu_metrics.expected.json").read_bytes())["traceEvents"]
    curves = {
        name: [(event["ts"] * 1000, event["args"][key]) for event in published if event["name"] == f"GPU 0 {name}"]
        for name, key in (("Est. SM Efficiency", "Est. SM Efficiency"), ("Utilization", "GPU Utilization"))
    }
    kernels = found.rows(Category.KERNEL)
    blocks = launch_geometry(found)[0][kernels]
    start, end = found.start[kernels], found.end[kernels]

    # Each kernel opens and closes a level; the first two points only set the scale of the drawing.
    levels = np.minimum(blocks, 1.0)
    ours = [point for a, b, level in zip(start, end, levels, strict=True) for point in ((int(a), level), (int(b), 0))]
    assert [time for time, _ in curves["Est. SM Efficiency"][2:]] == [time for time, _ in ours]
    assert [value for _, value in curves["Est. SM Efficiency"][2:]] == pytest.approx([10 * level for _, level in ours])

    buckets = [time for time, _ in curves["Utilization"][2:]]
    busy = covered(found, kernels)
    for opens, closes, (_, value) in zip(buckets, buckets[1:], curves["Utilization"][2:], strict=False):
        assert value == pytest.approx(100 * busy.clip(opens, closes).length / (closes - opens))

    weighted = sum(Fraction(str(level)) * int(b - a) for a, b, level in zip(start, end, levels, strict=True))
    device = found.device_rows()
    span = int(found.end[device].max() - found.start[device].min())
    (annotation,) = (row for row in found.rows(Category.USER_ANNOTATION) if "ProfilerStep" in found.name_of(row))
    assert (span, int(found.duration[annotation])) == (11_946_000, 13_410_000)
    assert sm_efficiency_est(found) == pytest.approx(float(weighted / span))
    assert (busy.length, covered(found, device).length) == (48_000, 50_000)
    assert occupancy_est(found) is None


@pytest.mark.corpus
def test_estimates_of_real_traces():
    figures = {}
    for name in ("nccl_rank0", "resnet50_workers0", "mi300_bert_small"):
        found = read(corpus_file(name))
        kernels = found.rows(Category.KERNEL)
        args = [found.args(row) for row in kernels]
        if "est. achieved occupancy %" in args[0]:
            weights = found.duration[kernels]
            mean = (
                sum(int(w) * a["est. achieved occupancy %"] for w, a in zip(weights, args, strict=True)) / weights.sum()
            )
            assert occupancy_est(found) == pytest.approx(mean)
        figures[name] = sm_efficiency_est(found)
    assert figures["mi300_bert_small"] is None
    assert figures["nccl_rank0"] == pytest.approx(0.208846, abs=1e-6)
    assert figures["resnet50_workers0"] == pytest.approx(0.584694, abs=1e-6)
