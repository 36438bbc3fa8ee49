"""Waiting for data, by hand and on the two public trainings that differ in nothing else."""

import pytest

from pytest_perfdl.analysis.account.transfers import InputFigures, input_pipeline
from pytest_perfdl.trace import read
from unit.trace.chrome import MAIN, corpus_file, kernel, launch, step, trace, x


def wait(ts, dur, name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", tid=MAIN):
    return x(name, ts, dur, "user_annotation", tid=tid)


def test_what_the_device_computes_meanwhile_is_hidden():
    figures = input_pipeline(
        trace(
            step(1, 0, 100),
            launch(0, 1, 1),
            kernel("k", 5, 25, 1),
            wait(10, 40),
            wait(60, 10),
            step(2, 110, 50),
            wait(120, 20),
        )
    )
    assert figures == InputFigures(
        waiting_ns=(50_000, 20_000),
        exposed_ns=(30_000, 20_000),
        step_ns=(100_000, 50_000),
        counts=(2, 1),
        largest_ns=40_000,
        outside_ns=0,
    )
    assert figures.share == 50 / 150
    assert figures.count == 3


def test_only_the_steps_thread_waits_and_only_inside_its_steps():
    figures = input_pipeline(
        trace(
            wait(0, 10),
            step(1, 20, 50),
            x("aten::stack", 30, 10),
            wait(25, 5, "perfdl.data_wait"),
            wait(28, 4),
            wait(40, 20, tid=7),
            wait(65, 10),
            x("perfdl.setup", 50, 10, "user_annotation"),
        )
    )
    # 25-32 overlap; 65-75 reaches past the step's end at 70
    assert figures.waiting_ns == figures.exposed_ns == (12_000,)
    assert figures.step_ns == (40_000,)
    assert figures.outside_ns == 10_000 + 5_000
    assert figures.counts == (3,)
    assert figures.largest_ns == 10_000


def test_without_waits_and_without_anything():
    assert input_pipeline(trace(step(1, 0, 10), x("aten::mm", 0, 5))).share == 0
    nothing = input_pipeline(trace())
    assert nothing == InputFigures((), (), (), (), 0, 0)
    assert (nothing.share, nothing.count) == (0, 0)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("workers", "published_ms", "host_ms"), [(0, 59.3, 69.3), (4, 1.2, 1.4)], ids=["no workers", "4 workers"]
)
def test_the_published_waits_of_resnet50(workers, published_ms, host_ms):
    figures = input_pipeline(read(corpus_file(f"resnet50_workers{workers}")))
    assert figures.counts == (1,) * 6
    # tb_plugin counts as DataLoader what no kernel, copy or runtime call covers
    assert round(sum(figures.exposed_ns) / 6 / 1e6, 1) == published_ms
    assert round(sum(figures.waiting_ns) / 6 / 1e6, 1) == host_ms
