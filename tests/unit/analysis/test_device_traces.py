"""The device's side of a step, worked out by hand."""

import pytest

from pytest_perfdl.analysis import profile_tables
from pytest_perfdl.analysis.account.transfers import copied_to_device
from pytest_perfdl.analysis.events.communication import communication_kernels
from pytest_perfdl.analysis.events.launches import launch_calls, launches
from pytest_perfdl.analysis.overview.device import communication_overlap
from unit.trace.chrome import MAIN, kernel, launch, step, trace, x


def _account(*events):
    tables = profile_tables(trace(*events))
    assert sum(tables.account.values()) == sum(tables.step_ns)
    return {name: ns for name, ns in tables.account.items() if ns}


def test_exposed_time_is_what_nothing_better_hides():
    assert _account(
        step(1, 0, 100),
        launch(0, 1, 1),
        launch(1, 1, 2),
        launch(2, 1, 3),
        launch(3, 1, 4),
        kernel("gemm", 10, 20, 1),
        kernel("ncclDevKernel_AllReduce", 25, 20, 2, stream=20),
        kernel("Memcpy HtoD (Pinned -> Device)", 28, 30, 3, stream=21, cat="gpu_memcpy"),
        kernel("Memset (Device)", 58, 42, 4, cat="gpu_memset"),
    ) == {
        "compute": 20_000,
        "exposed communication": 15_000,
        "exposed copies": 55_000,
        "launch latency": 10_000,
    }


def test_idle_time_by_what_the_host_did():
    assert _account(
        step(1, 0, 200),
        x("enumerate(DataLoader)#X.__next__", 5, 20, "user_annotation"),
        x("aten::item", 30, 12),
        launch(31, 8, 0, name="cudaStreamSynchronize"),
        x("aten::mm", 50, 20),
        launch(60, 5, 1),
        kernel("gemm", 80, 20, 1),
        launch(85, 2, 2),
        kernel("early launched", 105, 15, 2),
        launch(140, 2, 3),
        kernel("late", 150, 10, 3),
    ) == {
        "compute": 45_000,
        "input": 20_000,
        "synchronization": 12_000,
        "operator overhead": 10_000,
        # 0-5, 25-30, 42-50 before the first launch, 120-140 before the last, 160-200 after it
        "Python and host": 78_000,
        "launch latency": 30_000,
        "device wait": 5_000,
    }


def test_the_launching_threads_work_counts_not_another_ones():
    assert _account(
        step(1, 0, 100),
        x("main thread", 0, 40),
        x("engine thread", 10, 30, tid=9),
        launch(40, 5, 1, tid=9),
        kernel("k", 50, 50, 1),
    ) == {"compute": 50_000, "operator overhead": 30_000, "Python and host": 10_000, "launch latency": 10_000}


def test_a_kernel_that_starts_before_its_launch_call():
    assert _account(step(1, 0, 100), launch(50, 5, 1), kernel("k", 40, 60, 1)) == {
        "compute": 60_000,
        "Python and host": 40_000,
    }


def test_idle_before_an_event_of_unknown_launch_is_unattributed():
    assert _account(step(1, 0, 100), launch(0, 1, 1), kernel("k", 10, 20, 1), kernel("?", 50, 50, 99)) == {
        "compute": 70_000,
        "launch latency": 10_000,
        "unattributed": 20_000,
    }


def test_waiting_for_input_hides_the_synchronization_and_the_operators_in_it():
    assert _account(
        step(1, 0, 100),
        x("perfdl.data_wait", 10, 30, "user_annotation"),
        x("aten::item", 5, 20),
        x("aten::stack", 30, 20),
        launch(60, 1, 1),
        kernel("k", 60, 40, 1),
    ) == {
        "compute": 40_000,
        "input": 30_000,
        "synchronization": 5_000,
        "operator overhead": 10_000,
        "Python and host": 15_000,
    }


@pytest.mark.parametrize("followed", [True, False])
def test_idle_time_at_the_end_of_a_step_is_explained(followed):
    """A step may end with what others begin with, such as the next batch; so may the last step."""
    events = [step(1, 0, 100), launch(0, 1, 1), kernel("a", 0, 20, 1), x("aten::item", 20, 5)]
    events += [x("enumerate(DataLoader)#X.__next__", 30, 60, "user_annotation"), x("aten::stack", 85, 10)]
    if followed:
        events += [step(2, 100, 50), launch(110, 1, 2), kernel("b", 110, 40, 2)]
    # 25-30, 95-100, and 100-110 of the second
    assert _account(*events) == {
        "compute": 60_000 if followed else 20_000,
        "input": 60_000,
        "synchronization": 5_000,
        "operator overhead": 5_000,
        "Python and host": 20_000 if followed else 10_000,
    }


def test_idle_time_at_the_end_of_a_step_before_what_waits_on_the_device():
    events = [step(1, 0, 50), launch(0, 1, 1), kernel("a", 0, 20, 1), launch(10, 1, 2), x("aten::item", 20, 25)]
    assert _account(*events, step(2, 50, 50), kernel("b", 60, 40, 2)) == {"compute": 60_000, "device wait": 40_000}


def test_windows_share_idle_time_at_their_edge_once():
    account = _account(
        step(1, 0, 50),
        launch(0, 1, 1),
        kernel("a", 0, 20, 1),
        step(2, 50, 50),
        launch(60, 1, 2),
        kernel("b", 70, 30, 2),
    )
    assert account == {"compute": 50_000, "Python and host": 40_000, "launch latency": 10_000}


def test_setup_leaves_the_account():
    events = [
        step(1, 0, 100),
        x("perfdl.setup", 10, 30, "user_annotation"),
        launch(15, 1, 1),
        kernel("setup", 16, 10, 1),
    ]
    events += [launch(50, 1, 2), kernel("k", 60, 40, 2)]
    tables = profile_tables(trace(*events))
    assert tables.step_ns == (70_000,)
    assert {row.name for row in tables.rows if row.kind == "kernel"} == {"k"}
    assert tables.counts["kernels"] == tables.counts["launches"] == (1,)
    assert tables.device_busy_ns == (40_000,)
    assert sum(tables.account.values()) == 70_000
    assert tables.carry_over == 0


def test_kernel_rows_and_counts_by_launching_step():
    tables = profile_tables(
        trace(
            step(1, 0, 50),
            launch(1, 1, 1),
            launch(3, 1, 2, name="cudaGraphLaunch"),
            launch(5, 1, 3, name="cudaMemcpyAsync"),
            kernel("gemm", 40, 30, 1),
            kernel("gemm", 70, 5, 2),
            kernel("norm", 75, 5, 2),
            kernel("Memcpy HtoD (Pageable -> Device)", 80, 4, 3, cat="gpu_memcpy", bytes=1024),
            step(2, 50, 100),
            launch(60, 1, 4, name="cuLaunchKernelEx"),
            kernel("gemm", 90, 10, 4),
        )
    )
    assert [(row.name, row.count, row.ns) for row in tables.rows if row.kind == "kernel"] == [
        ("gemm", 3, 45_000),
        ("norm", 1, 5_000),
        ("Memcpy HtoD (Pageable -> Device)", 1, 4_000),
    ]
    assert tables.counts["kernels"] == (3, 1)
    assert tables.counts["launches"] == (2, 1)
    assert tables.counts["h2d_bytes"] == (1024, 0)
    assert tables.device_busy_ns == (44_000, 10_000)
    assert tables.step_ns == (84_000, 66_000)
    assert tables.carry_over == 0


def test_operator_rows_carry_the_host_time_of_step_and_engine_threads():
    tables = profile_tables(
        trace(
            step(1, 0, 100),
            x("aten::mm", 0, 20),
            launch(5, 5, 1),
            kernel("k", 10, 5, 1),
            x("autograd::engine::evaluate_function: MmBackward0", 30, 20, tid=9),
            x("aten::mm", 35, 10, tid=9),
        )
    )
    assert {row.name: (row.count, row.ns) for row in tables.rows if row.kind == "operator"} == {
        "aten::mm": (2, 30_000),
        "autograd::engine::evaluate_function: MmBackward0": (1, 10_000),
    }


def test_carry_over_and_lost_launches_are_told_apart():
    tables = profile_tables(
        trace(
            kernel("carried over", 6, 2, 50),
            launch(2, 1, 51),
            kernel("launched before the step", 8, 2, 51, stream=20),
            step(1, 5, 100),
            launch(6, 1, 1),
            kernel("linked", 10, 10, 1),
            kernel("lost its launch", 30, 10, 99),
            launch(20, 1, 2),
            kernel("empty", 45, 0, 2),
        )
    )
    assert tables.carry_over == 2
    assert {row.name for row in tables.rows if row.kind == "kernel"} == {"linked", "lost its launch", "empty"}


def test_when_no_launch_is_known_device_events_count_where_they_run():
    tables = profile_tables(trace(step(1, 0, 50), step(2, 50, 50), kernel("k", 10, 5, 1), kernel("k", 60, 5, 2)))
    assert tables.counts["kernels"] == (1, 1)
    assert tables.carry_over == 0


def test_a_correlation_that_two_calls_share_means_the_outer_one():
    found = trace(
        x("cuLaunchKernel", 3, 2, "cuda_driver", correlation=5),
        x("cudaLaunchKernel", 1, 9, "cuda_runtime", correlation=5),
        kernel("k", 20, 1, 5),
    )
    joined = launches(found)
    assert [found.name_of(row) for row in joined.call] == ["cudaLaunchKernel"]


@pytest.mark.parametrize(
    ("name", "launching"),
    [
        ("cudaLaunchKernel", True),
        ("cudaLaunchKernelExC", True),
        ("cudaLaunchCooperativeKernel", True),
        ("cuLaunchKernelEx", True),
        ("cudaGraphLaunch", True),
        ("hipLaunchKernel", True),
        ("hipExtModuleLaunchKernel", True),
        ("hipGraphLaunch", True),
        ("urEnqueueKernelLaunch", True),
        ("cudaMemcpyAsync", False),
        ("cudaMemsetAsync", False),
        ("cudaDeviceSynchronize", False),
        ("cudaEventRecord", False),
        ("cudaStreamIsCapturing", False),
        ("cudaFuncGetAttributes", False),
    ],
)
def test_which_calls_launch(name, launching):
    assert len(launch_calls(trace(launch(0, 1, 1, name=name))).row) == launching


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", {}, True),
        ("ncclKernel_AllGather", {}, True),
        ("void vllm::cross_device_reduce_1stage<half, 8>", {}, True),
        ("void deep_ep::intranode::dispatch", {}, True),
        ("dpsk::ep::combine", {}, True),
        ("nvshmemi_barrier", {}, True),
        ("void c10d::symmetric_memory::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>", {}, True),
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>", {}, True),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__half>", {}, True),
        ("void quickreduce::allreduce_prototype_twoshot<half>", {}, True),
        ("mscclKernel_Sum_half_Simple_false", {}, True),
        ("void mscclpp::allgather6<int>", {}, True),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs", {}, True),
        ("triton_poi_fused__to_copy_all_reduce_wait_tensor_0", {}, False),
        ("void SoftmaxBlockSMemImpl<BlockAllReduce<float, 8>>", {}, False),
        ("void at::native::reduce_kernel<512, 1>", {}, False),
        ("void at::native::_scatter_gather_elementwise_kernel<128, 8>", {}, False),
        ("my_ring", {"Collective name": "allreduce"}, True),
        ("gemm", {"Collective name": ""}, False),
        ("ampere_sgemm_128x64_nn", {}, False),
    ],
)
def test_which_kernels_communicate(name, args, expected):
    assert communication_kernels(trace(kernel(name, 0, 1, 1, **args))).tolist() == [expected]


def test_a_copy_is_never_communication():
    found = trace(kernel("Memcpy nccl", 0, 1, 1, cat="gpu_memcpy"))
    assert communication_kernels(found).tolist() == [False]
    assert communication_overlap(found) is None


def test_overlap_counts_each_moment_once_and_no_copies():
    found = trace(
        kernel("nccl", 0, 10, 1),
        kernel("nccl", 5, 15, 2, stream=8),
        kernel("gemm", 10, 6, 3, stream=9),
        kernel("gemm", 12, 3, 4, stream=10),
        kernel("Memcpy HtoD", 0, 20, 5, stream=11, cat="gpu_memcpy"),
    )
    assert communication_overlap(found) == 6 / 20


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Memcpy HtoD (Pageable -> Device)", 96),
        ("Memcpy HtoD (Host -> Device)", 96),
        ("CopyHostToDevice", 96),
        ("Memcpy M2D", 96),
        ("Memcpy D2M", 0),
        ("Memcpy DtoH (Device -> Pinned)", 0),
        ("CopyDeviceToHost", 0),
        ("Memcpy DtoD (Device -> Device)", 0),
        ("Memcpy PtoP (Device -> Device)", 0),
    ],
)
def test_direction_of_a_copy(name, size):
    made = trace(step(1, 0, 10), launch(1, 1, 5), kernel(name, 2, 1, 5, cat="gpu_memcpy", bytes=96))
    assert copied_to_device(made) == (size,)


def test_copies_belong_to_the_step_that_launched_them_and_memsets_to_none():
    found = copied_to_device(
        trace(
            step(1, 0, 10),
            launch(1, 1, 5),
            step(2, 10, 10),
            launch(11, 1, 6),
            launch(13, 1, 7),
            kernel("Memcpy HtoD", 12, 1, 5, cat="gpu_memcpy", bytes=100),
            kernel("Memcpy HtoD", 14, 1, 6, cat="gpu_memcpy", bytes=1),
            kernel("Memset (Device)", 16, 1, 7, cat="gpu_memset", bytes=7),
        )
    )
    assert found == (100, 1)


@pytest.mark.parametrize("args", [{"size": "2560"}, {"bytes": "2560"}, {"bytes": 2560}])
def test_the_size_of_a_copy_may_stand_on_its_call(args):
    call = x("hipMemcpyWithStream", 1, 5, "cuda_runtime", correlation=5, **args)
    copy = kernel("Memcpy HtoD (Host -> Device)", 2, 1, 5, cat="gpu_memcpy")
    found = copied_to_device(trace(step(1, 0, 10), call, copy))
    assert found == (2560,)


def test_copies_of_a_trace_without_steps_or_events():
    assert copied_to_device(trace()) == ()
    whole = copied_to_device(trace(kernel("Memcpy HtoD", 0, 1, 1, cat="gpu_memcpy", bytes=3), x("op", 0, 5, pid=MAIN)))
    assert whole == (3,)
