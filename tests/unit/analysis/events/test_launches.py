"""Which call launched a device event, and which claims of a correlation are refused: each worked out by hand."""

import pytest

from pytest_perfdl.analysis.account.accounts import profile_tables
from pytest_perfdl.analysis.events.launches import launch_calls, launches
from unit.analysis.jobs import lengths, said, steady, steps_in
from unit.trace.chrome import kernel, launch, step, trace, x


def links(*events):
    """Start of the call of each device event in us, by the event's name; None without one, "refused" if so."""
    found = trace(*events)
    joined = launches(found)
    return {
        found.name_of(row): "refused" if no else found.start[call] / 1000 if call >= 0 else None
        for row, call, no in zip(joined.device.tolist(), joined.call.tolist(), joined.refused.tolist(), strict=True)
    }


def driver(ts, dur, correlation, name="cuLaunchKernel"):
    return x(name, ts, dur, "cuda_driver", correlation=correlation)


@pytest.mark.parametrize("unset", [0, 2**32 - 1, -1], ids=["0", "2^32 - 1", "-1"])
def test_a_correlation_that_was_never_set_links_nothing(unset):
    assert links(launch(0, 5, unset), kernel("k", 10, 5, unset)) == {"k": None}


def test_collectives_without_a_correlation_belong_to_the_steps_in_which_they_run():
    # Six collectives of 300 us, all with correlation 0, two in each of three steps of 1000 us, beside one unrelated
    # call with correlation 0: all steps are 1000 us long.
    events = [event for number in range(3) for event in steady(1, first=number + 1, at=1000 * number)]
    events += [
        kernel("ncclDevKernel_AllReduce", 1000 * number + at, 300, 0, stream=20)
        for number in range(3)
        for at in (100, 500)
    ]
    events.append(launch(2950, 5, 0, name="cudaEventRecord"))
    found = steps_in(*events)
    assert lengths(found) == {1: 1000, 2: 1000, 3: 1000}
    # 6 of the 36 device events.
    assert said(found) == {
        "unlinked": "6 device events (16.7%) without a correlation: counted in the step during which they run"
    }
    assert profile_tables(trace(*events)).counts["kernels"] == (12, 12, 12)


def test_a_plain_launch_has_one_kernel():
    # All three are refused: which one it launched is not known. That is said, and the steps stay.
    events = [step(1, 0, 100), launch(0, 5, 1)]
    events += [kernel(name, at, 5, 1) for name, at in (("a", 10), ("b", 20), ("c", 30))]
    assert links(*events) == dict.fromkeys("abc", "refused")
    assert said(steps_in(*events))["refused-links"] == (
        "3 device events (100%) with a correlation that names a call that cannot have launched it: counted in the step "
        "during which they run"
    )


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("cudaGraphLaunch", "kernel"),
        ("hipGraphLaunch", "kernel"),
        ("cudaMemcpyAsync", "gpu_memcpy"),
        ("cudaMemcpyAsync", "kernel"),
        ("cudaMemPrefetchAsync", "gpu_memcpy"),
        ("cudaLaunchKernel", "gpu_memcpy"),
    ],
    ids=["graph", "graph of HIP", "copy in pieces", "copy by kernels", "prefetch", "copies of a launch"],
)
def test_calls_that_may_have_several(name, category):
    events = [kernel(each, at, 5, 1, cat=category) for each, at in (("a", 10), ("b", 20))]
    assert links(launch(0, 5, 1, name=name), *events) == {"a": 0, "b": 0}


def test_a_cooperative_launch_has_a_kernel_on_each_device():
    call = launch(0, 5, 1, name="cudaLaunchCooperativeKernelMultiDevice")
    other = {**kernel("second", 12, 5, 1), "pid": 1}
    assert links(call, kernel("first", 10, 5, 1), other) == {"first": 0, "second": 0}
    assert links(call, kernel("first", 10, 5, 1), other, kernel("third", 20, 5, 1)) == {
        "first": "refused",
        "second": 0,
        "third": "refused",
    }


def test_a_kernel_that_ended_before_its_call_began():
    # The others begin 10 us after their calls; "early" ended 880 us before its call. Its correlation is that of an
    # earlier recording.
    others = steady(1)
    events = [*others, kernel("early", 5, 5, 999, stream=9), launch(890, 5, 999)]
    assert links(*events)["early"] == "refused"
    # Where all are early by as much it is the clocks, and none is refused: begin 600 us before the call, end 550.
    shifted = [{**one, "ts": one["ts"] + 580} if one["cat"] != "kernel" else one for one in others]
    assert set(links(*shifted).values()) == {10.0 + 580 + 900}, "the last of equal names"
    assert not launches(trace(*shifted)).refused.any()


def test_kernels_out_of_the_order_of_their_launches():
    # By hand: of 40 kernels, a and b swapped with their neighbors break the order, and are the fewest that do. Where
    # a stream ran everything backwards, it is no stream, and no link is refused.
    def events(order):
        calls = [launch(10 * place, 5, place + 1) for place in range(len(order))]
        return [*calls, *(kernel(f"k{each}", 1000 + 10 * at, 5, each + 1) for at, each in enumerate(order))]

    found = links(*events([*range(1, 20), 0, *range(20, 40)]))
    assert found.pop("k0") == "refused"
    assert found == {f"k{each}": 10 * each for each in range(1, 40)}
    assert links(*events([*range(39, -1, -1)])) == {f"k{each}": 10 * each for each in range(40)}


def test_a_kernel_within_the_others_skew_stays():
    # "gemm" begins 8 us before its call, so clocks differ by 8 at least; "short" ended 3 us before its call.
    assert links(
        launch(10, 5, 1), kernel("gemm", 2, 20, 1), launch(45, 5, 2), kernel("short", 40, 2, 2), launch(60, 5, 3),
        kernel("late", 70, 5, 3),
    ) == {"gemm": 10, "short": 45, "late": 60}  # fmt: skip


def test_of_several_recordings_the_last_call_before_the_event_counts():
    # Correlations 1 and 2 in both: 1000 us apart.
    events = [
        *(launch(start + 10 * each, 5, each) for start in (0, 1000) for each in (1, 2)),
        *(kernel(f"{start} {each}", start + 10 * each + 6, 3, each) for start in (0, 1000) for each in (1, 2)),
    ]
    assert links(*events) == {"0 1": 10, "0 2": 20, "1000 1": 1010, "1000 2": 1020}


def test_a_driver_call_inside_a_runtime_call_is_the_same_launch():
    # Torch's call, the driver call inside it with its correlation or its own, and a second one in a library's.
    calls = [
        launch(0, 20, 1),
        driver(5, 10, 1),
        launch(30, 20, 2),
        driver(35, 10, 3),
        launch(60, 20, 4),
        driver(62, 5, 4),
        driver(70, 5, 4),
    ]
    events = [kernel("a", 25, 3, 1), kernel("b", 55, 3, 3), kernel("c", 85, 3, 4)]
    assert links(*calls, *events) == {"a": 0, "b": 35, "c": 60}
    found = trace(*calls, *events)
    each = launch_calls(found)
    assert (found.start[each.row] / 1000).tolist() == [0, 30, 60]
    assert each.events.tolist() == [1, 1, 1]


def test_the_metric_counts_each_launch_once():
    # Triton's cuLaunchKernelEx alone, and inside a runtime call: 3 launches in step 1, 1 in step 2.
    events = [
        step(1, 0, 100),
        launch(0, 20, 1),
        driver(5, 10, 1),
        kernel("a", 25, 3, 1),
        driver(30, 5, 2, "cuLaunchKernelEx"),
        kernel("b", 36, 3, 2),
        launch(40, 20, 3, name="cudaGraphLaunch"),
        driver(45, 10, 3, "cuGraphLaunch"),
        kernel("c", 65, 3, 3),
        kernel("d", 70, 3, 3),
        step(2, 100, 100),
        launch(110, 20, 4),
        kernel("e", 135, 3, 4),
    ]
    assert profile_tables(trace(*events)).counts["launches"] == (3, 1)
    # On another thread at the same time it is another launch.
    apart = [launch(0, 20, 1), launch(5, 10, 2, tid=9), kernel("a", 25, 3, 1), kernel("b", 29, 3, 2)]
    assert profile_tables(trace(step(1, 0, 100), *apart)).counts["launches"] == (2,)


def test_a_kernel_that_its_stream_ran_before_others_was_launched_before_them():
    # "odd" is the last of its stream, but its call is the first but one: one link of eleven. Launched where it runs, it
    # is in order.
    others = steady(1)
    events = [*others, launch(50, 5, 999), kernel("odd", 985, 3, 999)]
    assert links(*events)["odd"] == "refused"
    assert links(*others, launch(985, 5, 999), kernel("even", 992, 3, 999))["even"] == 985


def test_threads_that_launch_at_once_may_swap_neighbors():
    # The call of the kernel that runs first begins while that of the other has not returned.
    assert links(
        launch(0, 20, 1), launch(5, 5, 2, tid=9), kernel("second", 30, 5, 2), kernel("first", 40, 5, 1)
    ) == {"second": 5, "first": 0}  # fmt: skip
