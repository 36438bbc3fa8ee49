"""The part of a trace that a selection of steps leaves."""

import pytest

from pytest_perfdl.analysis.account.accounts import profile_tables
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.overview.selection import select
from pytest_perfdl.analysis.overview.tables import operator_tables
from pytest_perfdl.model.errors import SelectionError
from pytest_perfdl.model.selection import parse
from unit.trace.chrome import kernel, launch, step, trace, x

# The host runs ahead: the device is at the first step's work until 60, at the second's until 120. The loop's function
# began before either.
AHEAD = trace(
    x("train.py(3): train", 0, 60, "python_function", **{"Python id": 1}),
    step(1, 1, 9),
    x("aten::mm", 2, 5),
    launch(3, 1, 1),
    step(2, 10, 15),
    x("perfdl.setup", 11, 4, "user_annotation"),
    x("aten::mm", 16, 5),
    launch(17, 1, 2),
    kernel("gemm", 5, 55, 1),
    kernel("gemm", 60, 60, 2),
)


def test_a_selected_step_takes_what_it_took():
    whole, found = steps_of(AHEAD).windows, steps_of(select(AHEAD, parse(["step=2"]))).windows
    assert [(window.start, window.end) for window in whole] == [(1_000, 60_000), (60_000, 120_000)]
    assert found == whole[1:]
    account = profile_tables(select(AHEAD, parse(["step=2"]))).account
    assert account == {**dict.fromkeys(account, 0), "compute": 60_000}


def test_setup_is_left_out_of_a_selected_step_too():
    (window,) = steps_of(select(AHEAD, parse(["step=2"]))).windows
    assert window.host_ns == 11_000


def test_operators_of_a_selected_step_keep_their_line():
    (row,) = operator_tables(select(AHEAD, parse(["step=2"])))["line"]
    assert row.line == "train.py(3): train"


def test_device_events_of_a_kind():
    """Of each kind what its own name says; of the host's kinds no device event."""
    made = trace(
        step(1, 0, 50),
        *(launch(5 * place, 1, place + 1) for place in range(4)),
        kernel("gemm", 10, 5, 1),
        kernel("ncclDevKernel_AllReduce_Sum_f32", 15, 5, 2),
        kernel("Memcpy HtoD (Pinned -> Device)", 20, 5, 3, cat="gpu_memcpy"),
        kernel("Memset (Device)", 25, 5, 4, cat="gpu_memset"),
    )

    def selected(kind):
        found = select(made, parse([f"kind={kind}"]))
        return [found.name_of(row) for row in found.device_rows()]

    assert selected("kernel") == ["gemm"]
    assert selected("communication") == ["ncclDevKernel_AllReduce_Sum_f32"]
    assert selected("copy") == ["Memcpy HtoD (Pinned -> Device)"]
    assert selected("memset") == ["Memset (Device)"]
    with pytest.raises(SelectionError, match="the device ran no work of this kind"):
        selected("call")
