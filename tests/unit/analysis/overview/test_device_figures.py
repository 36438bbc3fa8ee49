"""Busy and idle, computing, communication and copies of a whole file: by hand, by properties, by evidence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_perfdl.analysis.account.accounts import device_accounts
from pytest_perfdl.analysis.efficiency.roofline import sm_efficiency_est
from pytest_perfdl.analysis.events.communication import communication_evidence, evidence_counts
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.overview.device import communication_overlap, device_figures
from pytest_perfdl.analysis.overview.tables import kernel_table
from unit.analysis.generated import device_events, event_lists, traces
from unit.analysis.reference import Reference
from unit.trace.chrome import kernel, launch, step, text, trace, x


def _figures(*events):
    figures = device_figures(trace(*events))
    assert figures is not None
    return figures


def _evidence(*events):
    return dict(evidence_counts(communication_evidence(trace(*events))))


def test_every_figure_by_hand():
    figures = _figures(
        step(1, 0, 1000),
        kernel("gemm", 10, 20, 1),
        kernel("norm", 20, 15, 2, stream=8),
        kernel("ncclDevKernel_AllReduce", 30, 20, 3, stream=20),
        kernel("ncclDevKernel_AllGather", 45, 10, 4, stream=21),
        kernel("Memcpy HtoD (Pinned -> Device)", 50, 15, 5, stream=22, cat="gpu_memcpy"),
        kernel("Memset (Device)", 60, 10, 6, stream=23, cat="gpu_memset"),
        kernel("gemm", 90, 10, 7),
    )
    assert figures.span_ns == 90_000
    assert figures.busy_ns == 70_000
    assert figures.idle_ns == 20_000
    assert figures.compute_ns == 35_000
    assert figures.communication_ns == 25_000
    assert figures.communication_overlapped_ns == 5_000
    assert figures.communication_exposed_ns == 20_000
    assert figures.copies_ns == 20_000
    assert figures.exposed_copies_ns == 15_000
    assert figures.busy_share == 7 / 9
    assert figures.overlap_share == 0.2
    assert figures.in_flight_communication_ns == figures.waiting_communication_ns == 0
    assert figures.communication_evidence == {"name": 2}


def test_no_device_events_no_figures():
    assert device_figures(trace(step(1, 0, 10), launch(1, 2, 3))) is None


def test_a_span_without_length():
    figures = _figures(kernel("k", 5, 0, 1))
    assert (figures.span_ns, figures.busy_ns, figures.busy_share, figures.overlap_share) == (0, 0, 0.0, None)


class TestEvidence:
    @pytest.mark.parametrize(
        "args",
        [
            {"Collective name": "allreduce"},
            {"Process Group Name": "default_pg"},
            {"Process Group Name": 0},
        ],
        ids=["collective", "group", "group number"],
    )
    def test_arguments_come_first(self, args):
        assert _evidence(kernel("ncclDevKernel", 0, 1, 1, **args)) == {"collective arguments": 1}

    @pytest.mark.parametrize("args", [{"Collective name": ""}, {"Process Group Name": None}], ids=["empty", "null"])
    def test_empty_arguments_show_nothing(self, args):
        assert _evidence(kernel("gemm", 0, 1, 1, **args)) == {}

    @pytest.mark.parametrize(
        ("name", "category"),
        [
            ("nccl:all_reduce", "user_annotation"),
            ("hccl:all_reduce", "user_annotation"),
            ("c10d::allreduce_", "cpu_op"),
            ("record_param_comms", "cpu_op"),
        ],
    )
    def test_the_operator_around_the_launch(self, name, category):
        events = [x(name, 0, 20, category), launch(5, 2, 1), kernel("a library's kernel", 10, 5, 1)]
        assert _evidence(*events) == {"parent operator": 1}

    def test_a_plain_operator_inside_a_collective_computes(self):
        assert (
            _evidence(
                x("c10d::allreduce_", 0, 40),
                x("aten::copy_", 5, 10),
                launch(7, 2, 1),
                kernel("copy", 10, 5, 1),
                launch(20, 2, 2),
                kernel("elementwise_kernel of at::native::add", 25, 5, 2),
            )
            == {}
        )

    def test_a_range_inside_a_collective_that_is_over_hides_nothing(self):
        events = [x("c10d::allreduce_", 0, 40), x("aten::copy_", 5, 10), launch(15, 2, 1), kernel("k", 20, 5, 1)]
        assert _evidence(*events) == {"parent operator": 1}

    @pytest.mark.parametrize(
        "call",
        [launch(5, 2, 1, tid=9), launch(20, 2, 1), launch(5, 2, 99)],
        ids=["another thread", "after its end", "another launch"],
    )
    def test_a_collective_elsewhere_shows_nothing(self, call):
        assert _evidence(x("c10d::allreduce_", 0, 20), call, kernel("k", 10, 5, 1)) == {}

    def test_a_collective_on_another_thread_does_not_hide_the_own_one(self):
        events = [x("c10d::allreduce_", 0, 20), x("aten::mm", 1, 18, tid=9), launch(5, 2, 1), kernel("k", 10, 5, 1)]
        assert _evidence(*events) == {"parent operator": 1}

    @pytest.mark.parametrize(
        "name",
        ["rcclGenericKernel", "oneccl_allreduce", "void ccl::v1::reduce<float>", "hcclKernel", "nvshmemi_transfer"],
    )
    def test_libraries_by_name(self, name):
        assert _evidence(kernel(name, 0, 1, 1)) == {"name": 1}

    def test_names_that_only_look_alike(self):
        assert _evidence(kernel("void acc::lu(float)", 0, 1, 1), kernel("deep_gemm::sm90", 1, 1, 2)) == {}


def _ll(kind, ts, dur, stream=7):
    return kernel(f"void deep_ep::internode_ll::{kind}<true, 3, 10>(void*)", ts, dur, 1, stream=stream)


class TestInFlight:
    def test_two_phases_of_a_low_latency_kernel(self):
        figures = _figures(
            _ll("dispatch", 0, 5),
            kernel("shared expert", 5, 20, 2),
            _ll("dispatch", 30, 5),
            _ll("combine", 40, 5),
            kernel("attention", 45, 5, 3),
            _ll("combine", 55, 5),
        )
        assert figures.in_flight_communication_ns == 25_000 + 10_000
        assert figures.communication_ns == 20_000

    def test_kernels_that_send_and_receive_at_once_leave_nothing_in_flight(self):
        events = [_ll(kind, 10 * at, 5) for at, kind in enumerate(["dispatch", "combine"] * 3)]
        assert _figures(*events).in_flight_communication_ns == 0

    def test_streams_are_apart_and_a_window_may_begin_between_the_phases(self):
        figures = _figures(
            _ll("dispatch", 0, 5), _ll("dispatch", 10, 5, 8), _ll("combine", 20, 5), _ll("combine", 30, 5)
        )
        assert figures.in_flight_communication_ns == 5_000

    def test_a_receive_ends_one_send_only(self):
        figures = _figures(_ll("dispatch", 0, 5), _ll("dispatch", 10, 5), _ll("dispatch", 20, 5), _ll("combine", 30, 5))
        assert figures.in_flight_communication_ns == 5_000

    def test_send_and_receive_in_the_name(self):
        figures = _figures(
            kernel("deep_ep::a2a_recv<1>", 0, 5, 1),
            kernel("deep_ep::a2a_send<1>", 10, 5, 1),
            kernel("deep_ep::other_send", 16, 1, 1),
            kernel("deep_ep::a2a_recv<2, 3>", 40, 5, 1),
        )
        assert figures.in_flight_communication_ns == 25_000

    def test_without_evidence_in_names_there_is_none(self):
        events = [kernel("ncclDevKernel_SendRecv(int)", 0, 5, 1), kernel("ncclDevKernel_SendRecv(int)", 50, 5, 2)]
        assert _figures(*events).in_flight_communication_ns == 0
        assert (
            _figures(*(kernel(f"copy_{verb}", at, 5, 1) for verb, at in (("send", 0), ("recv", 9)))).busy_ns == 10_000
        )

    def test_kernels_that_only_wait(self):
        figures = _figures(
            kernel("void deep_ep::intranode::notify_dispatch<8>(int)", 0, 30, 1),
            kernel("void deep_ep::intranode::dispatch<8>(int)", 30, 10, 2),
            kernel("nvshmem_barrier_all", 40, 5, 3),
            kernel("barrier of something else", 50, 5, 4),
        )
        assert figures.communication_ns == 45_000
        assert figures.waiting_communication_ns == 35_000


def test_a_launch_at_the_moment_when_idle_time_begins_is_late():
    found = trace(step(1, 0, 60), launch(0, 1, 1), kernel("a", 0, 10, 1), launch(10, 2, 2), kernel("b", 15, 45, 2))
    (account,) = device_accounts(found)
    assert {name: ns for name, ns in account.items() if ns} == {"compute": 55_000, "launch latency": 5_000}


def test_of_equally_busy_threads_the_first_owns_a_trace_without_steps():
    (window,) = steps_of(trace(*(x("op", at, 1, tid=tid) for at, tid in enumerate((9, 5, 5, 9))))).windows
    assert window.tid == 9


class TestProperties:
    @pytest.mark.long
    @given(traces())
    def test_unions_are_bounded_and_close(self, found):
        figures = device_figures(found)
        rows = found.device_rows()
        assert figures.busy_ns + figures.idle_ns == figures.span_ns
        assert found.duration[rows].max() <= figures.busy_ns <= found.duration[rows].sum()
        assert figures.communication_exposed_ns + figures.communication_overlapped_ns == figures.communication_ns
        exposed = figures.communication_exposed_ns + figures.exposed_copies_ns
        devices = len(set(found.pid[rows].tolist()))
        assert figures.compute_ns + exposed >= figures.busy_ns
        assert devices > 1 or figures.compute_ns + exposed == figures.busy_ns
        assert figures.exposed_copies_ns <= figures.copies_ns
        assert figures.waiting_communication_ns <= figures.communication_ns
        assert (figures.overlap_share or 0.0) == (communication_overlap(found) or 0.0)

    @pytest.mark.long
    @given(event_lists(), device_events())
    def test_another_event_never_takes_time_away(self, events, more):
        before, after = _figures(*events), _figures(*events, more[-1])
        for field in ("span_ns", "busy_ns", "compute_ns", "copies_ns"):
            assert getattr(before, field) <= getattr(after, field)

    @pytest.mark.long
    @given(event_lists(), st.integers(1, 10**6))
    def test_figures_do_not_depend_on_when(self, events, shift):
        assert _figures(*events) == _figures(*({**event, "ts": event["ts"] + shift} for event in events))

    @pytest.mark.long
    @given(traces())
    def test_the_account_closes_over_every_window(self, found):
        steps = steps_of(found)
        accounts = device_accounts(found)
        assert [sum(account.values()) for account in accounts] == [window.window_ns for window in steps.windows]
        assert all(ns >= 0 for account in accounts for ns in account.values())

    @pytest.mark.long
    @given(event_lists())
    def test_figures_accounts_and_sums_equal_the_slow_reference(self, events):
        found = trace(*events)
        steps = steps_of(found)
        reference = Reference(text(events), steps.left_out)
        expected = reference.device_figures()
        figures = device_figures(found)
        assert {name: getattr(figures, name) for name in expected} == expected
        accounts = device_accounts(found)
        assert [{name: ns for name, ns in account.items() if ns} for account in accounts] == reference.accounts()
        sums = {(row.name, row.kind): (row.count, row.total_ns) for row in kernel_table(found)}
        assert sums == reference.kernel_sums()

    @pytest.mark.long
    @given(traces())
    def test_kernel_rows_add_up(self, found):
        figures, rows = device_figures(found), kernel_table(found)
        assert sum(row.count for row in rows) == len(found.device_rows())
        assert sum(row.total_ns for row in rows) == found.duration[found.device_rows()].sum()
        for kind, limit in (
            ("compute", figures.compute_ns),
            ("communication", figures.communication_exposed_ns),
            ("copy", figures.exposed_copies_ns),
        ):
            assert sum(row.exposed_ns for row in rows if row.kind == kind) <= limit


def test_what_another_device_computes_hides_no_communication():
    """One process drives two devices: the first waits in a collective for what the second computes."""
    events = [step(1, 0, 100), *(launch(0, 1, number) for number in (1, 2, 3, 4))]
    events += [kernel("gemm", 0, 30, 1), kernel("ncclKernel", 30, 60, 2)]
    other = {"cat": "kernel", "pid": 1, "tid": 7, "device": 1}
    events += [x("gemm", 0, 80, correlation=3, **other), x("ncclKernel", 80, 10, correlation=4, **other)]
    made = trace(*events)
    figures = device_figures(made)
    assert (figures.communication_ns, figures.communication_exposed_ns) == (60_000, 60_000)
    assert figures.overlap_share == communication_overlap(made) == 0
    assert figures.devices == 2


def test_the_time_between_steps_does_not_count():
    events = []
    for number, begin in ((1, 0), (2, 100), (7, 5000)):
        events += [step(number, begin, 100), launch(begin + 10, 5, number)]
        events.append(kernel("gemm", begin + 20, 70, number, **{"blocks per SM": 0.5}))
    made = trace(*events)
    figures = device_figures(made)
    # From 20 to 200 and from 5000 to 5090.
    assert (figures.span_ns, figures.busy_ns) == (270_000, 210_000)
    assert sm_efficiency_est(made) == pytest.approx(0.5 * 210 / 270)
