"""Kernels by name: counts, durations, kinds, and the time that nothing else fills."""

import random

from pytest_perfdl.analysis.overview.tables import kernel_table
from unit.trace.chrome import kernel, launch, step, trace, x

GEOMETRY = "blocks per SM", "est. achieved occupancy %"


def _geometry(blocks, occupancy):
    return dict(zip(GEOMETRY, (blocks, occupancy), strict=True))


def test_rows_by_hand():
    rows = kernel_table(
        trace(
            step(1, 100, 10),
            kernel("gemm", 0, 20, 1, **_geometry(0.5, 10)),
            kernel("gemm", 30, 5, 2, **_geometry(2.5, 60)),
            kernel("nccl", 10, 15, 3, stream=20, **_geometry(0.25, 5)),
            kernel("Memset (Device)", 24, 4, 4, stream=21, cat="gpu_memset"),
            kernel("norm", 15, 6, 5, stream=22),
        )
    )
    assert [(row.name, row.kind, row.count, row.total_ns, row.exposed_ns) for row in rows] == [
        ("gemm", "compute", 2, 25_000, 20_000),
        ("nccl", "communication", 1, 15_000, 4_000),
        ("norm", "compute", 1, 6_000, 1_000),
        ("Memset (Device)", "copy", 1, 4_000, 3_000),
    ]
    gemm, _, norm, memset = rows
    assert (gemm.min_ns, gemm.max_ns, gemm.mean_ns) == (5_000, 20_000, 12_500.0)
    assert gemm.occupancy_est == (10 * 20 + 60 * 5) / 25
    assert gemm.blocks_per_sm == (0.5 * 20 + 2.5 * 5) / 25
    assert norm.occupancy_est is norm.blocks_per_sm is memset.occupancy_est is None


def test_a_row_does_not_hide_itself():
    (row,) = kernel_table(trace(kernel("gemm", 0, 10, 1), kernel("gemm", 5, 10, 2, stream=8)))
    assert (row.total_ns, row.exposed_ns) == (20_000, 15_000)


def test_one_name_may_be_of_two_kinds():
    rows = kernel_table(
        trace(
            x("c10d::allreduce_", 0, 5),
            launch(1, 1, 1),
            kernel("reduce", 10, 7, 1),
            launch(6, 1, 2),
            kernel("reduce", 20, 3, 2),
        )
    )
    assert [(row.name, row.kind, row.total_ns) for row in rows] == [
        ("reduce", "communication", 7_000),
        ("reduce", "compute", 3_000),
    ]


def test_nothing_and_no_durations():
    assert kernel_table(trace(step(1, 0, 10), x("op", 1, 2))) == ()
    (row,) = kernel_table(trace(kernel("k", 5, 0, 1, **_geometry(1, 50))))
    assert (row.count, row.total_ns, row.exposed_ns, row.occupancy_est) == (1, 0, 0, None)


def test_exposed_time_against_single_microseconds():
    draw = random.Random(5)
    names = {"gemm": 0, "norm": 0, "nccl a": 1, "nccl b": 1, "Memcpy HtoD": 2}
    for _ in range(40):
        events = [
            (draw.choice(list(names)), draw.randrange(50), draw.randrange(9)) for _ in range(draw.randrange(1, 15))
        ]
        running = {name: set() for name in names}
        for name, start, duration in events:
            running[name] |= set(range(start, start + duration))
        rows = kernel_table(
            trace(
                *(
                    kernel(name, start, duration, 1, stream=at, cat="gpu_memcpy" if names[name] == 2 else "kernel")
                    for at, (name, start, duration) in enumerate(events)
                )
            )
        )
        for row in rows:
            hiding = [running[name] for name, kind in names.items() if kind <= names[row.name] and name != row.name]
            assert row.exposed_ns == 1000 * len(running[row.name].difference(*hiding))
