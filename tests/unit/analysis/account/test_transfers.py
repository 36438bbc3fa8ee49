"""Copies and memsets of a whole file by kind: bytes, time and bandwidth by hand."""

import pytest

from pytest_perfdl.analysis.account.transfers import CopyRow, copy_figures
from pytest_perfdl.trace import Category, read
from unit.trace.chrome import corpus_file, kernel, launch, step, trace, x


def _copy(name, ts, dur, correlation=1, cat="gpu_memcpy", **args):
    return kernel(name, ts, dur, correlation, cat=cat, **args)


def test_rows_by_hand():
    rows = copy_figures(
        trace(
            step(1, 500, 10),
            _copy("Memcpy HtoD (Pinned -> Device)", 0, 10, bytes=100_000),
            _copy("Memcpy HtoD (Pinned -> Device)", 5, 30, bytes=300_000),
            _copy("Memcpy HtoD (Pageable -> Device)", 50, 5, bytes=1000),
            _copy("Memcpy DtoH (Device -> Pinned)", 60, 8, bytes=8000),
            _copy("Memset (Device)", 70, 2, cat="gpu_memset", bytes=4096),
            kernel("gemm", 80, 100, 2),
        )
    )
    assert rows == (
        CopyRow("h2d", "pinned", 2, 400_000, 40_000, 10e9),
        CopyRow("d2h", "pinned", 1, 8000, 8_000, 1e9),
        CopyRow("h2d", "pageable", 1, 1000, 5_000, 0.2e9),
        CopyRow("memset", "", 1, 4096, 2_000, 2.048e9),
    )


@pytest.mark.parametrize(
    ("name", "kind", "memory"),
    [
        ("Memcpy DtoD (Device -> Device)", "d2d", ""),
        ("Memcpy PtoP (Device -> Device)", "p2p", ""),
        ("Memcpy HtoH (Pageable -> Pageable)", "h2h", "pageable"),
        ("Memcpy HtoD (Host -> Device)", "h2d", ""),
        ("CopyDeviceToHost", "d2h", ""),
        ("a copy", "other", ""),
    ],
)
def test_kinds(name, kind, memory):
    (row,) = copy_figures(trace(_copy(name, 0, 1)))
    assert (row.kind, row.host_memory, row.bytes) == (kind, memory, 0)


def test_bandwidth_is_of_the_copies_whose_size_is_known():
    (row,) = copy_figures(trace(_copy("Memcpy HtoD", 0, 10, bytes=50), _copy("Memcpy HtoD", 20, 90)))
    assert (row.bytes, row.total_ns, row.bandwidth) == (50, 100_000, 50 / 10e-6)
    (untimed,) = copy_figures(trace(_copy("Memcpy HtoD", 0, 0, bytes=50)))
    assert untimed.bandwidth is None


def test_the_size_may_stand_on_the_call_and_may_be_nonsense():
    call = x("hipMemcpyWithStream", 0, 5, "cuda_runtime", correlation=1, size="2560")
    assert [row.bytes for row in copy_figures(trace(call, _copy("Memcpy HtoD", 1, 1)))] == [2560]
    assert [row.bytes for row in copy_figures(trace(launch(0, 1, 1), _copy("Memcpy HtoD", 1, 1, bytes="9" * 30)))] == [
        0
    ]


def test_no_copies():
    assert copy_figures(trace()) == copy_figures(trace(kernel("k", 0, 1, 1))) == ()


@pytest.mark.corpus
def test_every_copy_of_a_real_trace():
    found = read(corpus_file("nccl_rank1"))
    rows = copy_figures(found)
    events = found.rows(Category.GPU_MEMCPY, Category.GPU_MEMSET)
    assert sum(row.count for row in rows) == len(events)
    assert sum(row.total_ns for row in rows) == found.duration[events].sum()
    assert sum(row.bytes for row in rows) == sum(found.args(row)["bytes"] for row in events)
    assert [(row.kind, row.host_memory) for row in rows][:2] == [("h2d", "pinned"), ("d2d", "")]
