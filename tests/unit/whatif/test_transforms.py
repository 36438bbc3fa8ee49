"""Transforms: what each predicts for steps whose answer is worked out by hand, and what it refuses."""

import numpy as np
import pytest

from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.model.selection import parse
from pytest_perfdl.trace import read
from pytest_perfdl.whatif import Plan, Select, task_graph
from pytest_perfdl.whatif.editing.select import Selected
from pytest_perfdl.whatif.facts import gradients
from pytest_perfdl.whatif.machine import machine_of
from pytest_perfdl.whatif.predict import Base, WhatIf, predict, together
from pytest_perfdl.whatif.strategy import kept_allocations, layers
from pytest_perfdl.whatif.transform import Change, Context, lifetimes, transform
from pytest_perfdl.whatif.transforms import TRANSFORMS, find, parameters
from unit.trace.chrome import corpus_file, kernel, launch, memory, step, trace, x
from unit.whatif.training import MATRIX, STEP, context, device_training, host_training, linear, with_memory


def step_us(made, question, machine=None, /, **given):
    """Predicted mean step in microseconds."""
    found = predict(context(made, **(machine or {})), question, **given)
    assert found.predicted_ns is not None, found.reason
    assert found.interval_ns[0] <= found.predicted_ns <= found.interval_ns[1]
    return found.predicted_ns / 1000


def refusal(made, question, machine=None, /, **given):
    found = predict(context(made, **(machine or {})), question, **given)
    assert found.predicted_ns is found.interval_ns is found.gain is None
    return found.reason


def loading(workers=False):
    """Steps of 1000 us, 600 of which make the batch."""
    name = "_MultiProcessingDataLoaderIter" if workers else "_SingleProcessDataLoaderIter"
    events = []
    for number in range(3):
        at = 1000 * number
        events += [
            step(number, at, 1000),
            x(f"enumerate(DataLoader)#{name}.__next__", at, 600, "user_annotation"),
            x("aten::stack", at + 100, 300),
            x("aten::mm", at + 600, 400),
        ]
    return trace(*events)


@pytest.mark.parametrize(
    ("workers", "expected"), [(1, 650), (2, 450), (8, 450)], ids=["one worker", "two workers", "eight workers"]
)
def test_workers(workers, expected):
    # 600 us a batch over the workers, less 400 us of computing, and 50 us to take it over.
    assert step_us(loading(), "workers", workers=workers) == expected
    assert step_us(loading(), "workers", {"cores": 2}, workers=workers) == 650


def test_workers_share_the_processor_with_a_step_that_computes_there():
    # Both take half as long again: 900 us a batch, less 600 of computing; then 600 and 50 to take it over.
    known = {"cores": 2, "contention": 1.5}
    assert step_us(loading(), "workers", known, workers=1) == 950
    assert step_us(loading(), "workers", {**known, "hand_over_ns": 200e3}, workers=1) == 1100
    assert predict(context(loading(), **known), "workers", workers=1).trust == "ok"
    # Not measured: at worst half as long again, and 300 us to take a batch over; and half a percent of the 650.
    found = predict(context(loading(), cores=2), "workers", workers=1)
    assert found.trust == "low"
    assert found.interval_ns[1] == pytest.approx(1_200_000 + 3_250)
    assert "perfdl constants" in found.notes[-1]


def test_prefetching_is_one_worker():
    assert step_us(loading(), "prefetch") == 650
    assert "already has workers" in refusal(loading(workers=True), "prefetch")


def test_more_workers():
    assert "set now=" in refusal(loading(workers=True), "workers", workers=4)
    # A batch takes two workers two periods of 1000 us: 2000 over 4 is 500, 100 more than the computing.
    assert step_us(loading(workers=True), "workers", workers=4, now=2) == 550
    assert "the step spends no time in a DataLoader" in refusal(host_training(), "workers", workers=1)


def test_removing_an_operator_takes_its_backward_pass_and_the_python_behind_it():
    # 2 x (150 + 10) forward; 2 x 280 backward, where the accumulation follows at once.
    assert step_us(host_training(), "remove_operator", name="aten::mm", python=False) == STEP - 2 * 150 - 2 * 280
    assert step_us(host_training(), "remove_operator", name="aten::mm") == STEP - 2 * 160 - 2 * 280
    assert "no operator aten::dropout" in refusal(host_training(), "remove_operator", name="aten::dropout")


def test_removing_gradient_clipping():
    clipping = [
        event
        for number in range(3)
        for event in (
            x("aten::linalg_vector_norm", STEP * number + 1110, 20),
            x("aten::mul_", STEP * number + 1140, 30),
        )
    ]
    # Of the gaps those before the two and between them go: 10 us each.
    assert step_us(host_training(extra=clipping), "remove_clipping") == STEP - 20 - 30 - 10 - 10
    assert "no operator computes a norm" in refusal(host_training(), "remove_clipping")


def test_a_fused_optimizer():
    # 180 us from the first to the last operator become 20 us, 2.5 us for each of 2 parameters, and 3 passes over
    # 2 x 1024 x 4 bytes at 1 GB/s.
    expected = STEP - 180 + 20 + 2 * 2.5 + 3 * 8192 / 1000
    assert step_us(host_training(), "fused_optimizer", {"memory_bytes_per_s": 1e9}) == pytest.approx(expected, abs=0.01)
    assert "memory_bytes_per_s" in refusal(host_training(), "fused_optimizer")
    assert "no optimizer update" in refusal(device_training(), "fused_optimizer")


def test_a_fused_optimizer_is_no_slower_a_reader_than_the_operators_that_it_replaces():
    """Each of them moves 3 x 4096 bytes in 80 us, more than the memory's 1 MB/s: the parameters are in a cache."""
    reached = 3 * 4096 / 80
    expected = STEP - 180 + 20 + 2 * 2.5 + 3 * 8192 / reached
    assert step_us(host_training(), "fused_optimizer", {"memory_bytes_per_s": 1e6}) == pytest.approx(expected, abs=0.01)


def test_foreach_on_a_cpu_takes_the_python_away():
    assert step_us(host_training(), "foreach") == pytest.approx(STEP - 20 + 0.25)


def test_amp_by_measured_ratios():
    ratios = {"bfloat16": {"aten::mm [[16, 32], [32, 32]]": (0.4, 0.5, 0.6)}}
    made = context(host_training(), ratios=ratios, memory_bytes_per_s=1e9)
    found = predict(made, "amp")
    # 2 x 150 forward and 2 x 250 backward halve; casts: 2 x 6 bytes for each of 2048 parameters.
    assert found.predicted_ns == pytest.approx(1e3 * (STEP - 400) + 12 * 2048, rel=1e-6)
    assert found.trust == "ok"
    low, high = found.interval_ns
    assert low < 1e3 * (STEP - 480) + 12 * 2048 < 1e3 * (STEP - 320) + 12 * 2048 < high


def test_amp_by_peaks_is_rough_and_says_so():
    peaks = {"flops_per_s": {"float32": 1e9, "bfloat16": 2e9}, "memory_bytes_per_s": 1e12}
    found = predict(context(host_training(), **peaks), "amp")
    # Compute-bound products halve with the peaks; relu, which is not, with its bytes.
    assert found.predicted_ns == pytest.approx(1e3 * (STEP - 400 - 40), rel=1e-4)
    assert found.trust == "low"
    assert "bfloat16 is unknown" in refusal(host_training(), "amp", {"memory_bytes_per_s": 1e9})
    with pytest.raises(ValueError, match="expected bfloat16 or float16"):
        predict(context(host_training()), "amp", dtype="int4")


def test_amp_where_autocast_is_on_already():
    """A convolution that is given float32 and computes in bfloat16 inside, and a product in float32."""

    def product(ts, dur, name="aten::linear", kind="float"):
        return x(name, ts, dur, **{"Input Dims": MATRIX, "Input type": [kind] * 2})

    inside = [product(0, 300), product(100, 150, kind="c10::BFloat16")]
    ratios = {
        "bfloat16": {"aten::linear [[16, 32], [32, 32]]": (0.5, 0.5, 0.5), "aten::mm [[16, 32], [32, 32]]": (0.5,) * 3}
    }
    on = trace(step(0, 0, 1000), *inside)
    assert "runs in float32" in refusal(on, "amp", {"ratios": ratios})
    partly = trace(step(0, 0, 1000), *inside, product(500, 200, "aten::mm"))
    assert step_us(partly, "amp", {"ratios": ratios}) == 900


def test_channels_last():
    assert "no convolution" in refusal(host_training(), "channels_last")


def test_more_layers():
    # Each layer: 200 us forward, with the Python in it, 300 us backward; the update, 180 us, doubles with the layers.
    assert step_us(host_training(), "layers", to=4, now=2) == STEP + 2 * (200 + 300) + 180
    assert step_us(host_training(), "layers", to=1, now=2) == STEP - (200 + 300) - 90
    one = step_us(host_training(), "layers", to=2, now=1, layer="Net.layers.0")
    assert one == STEP + 200 + 300 + 90
    assert "no module matches" in refusal(host_training(), "layers", to=2, now=1, layer="Elsewhere")


def test_checkpointing_runs_the_forward_pass_again_and_frees_what_it_kept():
    found = predict(context(with_memory()), "checkpointing")
    # Each layer: its 200 us again, since relu saves what it computes; 100 us, and 20 us for its one node.
    assert found.predicted_ns == 1e3 * (STEP + 2 * (200 + 100 + 20))
    # Before: 1000 and two layers of 800. After: the inputs of both layers, 200 each, and one layer's 600 at a time.
    assert (found.peak_bytes, found.predicted_peak_bytes) == (2600, 2000)


def test_recomputing_stops_where_all_that_is_saved_is_there():
    """A product at a layer's end saves its input only: the 40 us of relu and the 10 us behind it run again."""
    found = predict(context(host_training(product_last=True)), "checkpointing")
    assert found.predicted_ns == 1e3 * (STEP + 2 * (40 + 10 + 100 + 20))


def test_the_result_of_a_layer_is_not_what_it_keeps():
    """It is the last that outlives the forward pass, though freed before the layer's backward pass begins."""
    made = context(with_memory())
    first, second = layers(made)
    assert made.memory.bytes[kept_allocations(made, first)].tolist() == [600]
    assert made.memory.bytes[kept_allocations(made, second)].tolist() == [600]


def test_gist_keeps_a_part():
    machine = {"memory_bytes_per_s": 1e6}
    found = predict(context(with_memory(), **machine), "gist", ratio=0.5)
    # 600 bytes a layer, written and read: 1.5 x 600 us at 1 byte/us, forward and backward.
    assert found.predicted_ns == 1e3 * (STEP + 4 * 900)
    assert found.predicted_peak_bytes == 2600 - 300
    assert "profile_memory" in refusal(host_training(), "gist")


@pytest.mark.corpus
def test_the_peak_of_lifetimes_is_that_of_the_allocator():
    assert lifetimes(with_memory(2)).peak_bytes == 2600
    trace_of_gpu = read(corpus_file("h100"))
    assert lifetimes(trace_of_gpu).peak_bytes == 101_305_344


def test_batch_size_by_two_traces():
    first, second = host_training(), context(host_training())
    double = second.graph.with_durations(second.graph.tasks.duration * 2)
    from pytest_perfdl.whatif.transforms.sizes import affine

    made = context(first)
    change = affine(made, double, 0.5)
    found = predict(made, WhatIf("batch", change.plan))
    assert found.predicted_ns == 1.5e3 * STEP
    assert predict(made, WhatIf("batch", affine(made, double, 0.0).plan)).predicted_ns == 1e3 * STEP


def test_batch_size_by_one_trace_is_proportional():
    found = predict(context(host_training()), "batch", to=2, now=1)
    # What has a cost doubles: both layers' mm and relu, and their backward products.
    assert found.predicted_ns == 1e3 * (STEP + 2 * 190 + 2 * 250)
    assert found.trust == "low"


def test_data_parallel_sends_buckets_behind_the_gradients():
    # 4096 bytes over 2 ranks at 4096 bytes/us = 1 us, without the copies since the memory's rate is not known.
    machine = {"network_bytes_per_s": 4096e6}
    made = context(host_training(), **machine)
    found = predict(made, "data_parallel", ranks=2, contention=1.0, bucket=1)
    # Both gradients fit in the first bucket, which is sent at 1100; the update begins at 1250.
    assert found.predicted_ns == 1e3 * STEP
    slow = predict(context(host_training(), network_bytes_per_s=40.96e6), "data_parallel", ranks=2, contention=1.0)
    assert slow.predicted_ns == 1e3 * (STEP + 200 - 150)
    assert "network_bytes_per_s" in refusal(host_training(), "data_parallel", ranks=2)


def test_gradients_are_as_large_as_their_type():
    events = [
        x("torch::autograd::AccumulateGrad", 10 * n, 5, **{"Input Dims": [[4, 8]], "Input type": [kind]})
        for n, kind in enumerate(("float", "c10::BFloat16", "double"))
    ]
    found = gradients(trace(step(1, 0, 100), *events))
    assert (found.bytes.tolist(), found.total, found.total_bytes) == ([128, 64, 256], 96, 448)


def test_dgc_sends_less():
    machine = {"network_bytes_per_s": 40.96e6, "memory_bytes_per_s": 8192e6}
    found = predict(context(host_training(), **machine), "dgc", ranks=2, ratio=0.5)
    # 3 us to compress, then as much as before, a third longer beside computing: 268 of which 150 are hidden.
    assert found.predicted_ns == pytest.approx(1e3 * (STEP + 3 + 268 - 150), rel=1e-3)


RANKS = {"ranks": 4}


def test_blueconnect_adds_up_its_stages():
    machine = {"network_bytes_per_s": 40.96e6}
    made = context(host_training(), **machine)
    # 2 x 1/2 of 8192 bytes at 40.96 bytes/us, then the same of the half.
    found = predict(made, "blueconnect", shape="2x2", contention=1.0)
    assert found.predicted_ns == 1e3 * (STEP + 300 - 150)
    found = predict(made, "blueconnect", shape="2x2", bandwidths="81.92MBx40.96MB", contention=1.0)
    assert found.predicted_ns == 1e3 * (STEP + 200 - 150)
    # Over one stage it is the ring that data parallel training takes, beside computing too.
    ring = [predict(made, name, **given) for name, given in (("blueconnect", {"shape": "4"}), ("data_parallel", RANKS))]
    assert ring[0].predicted_ns == ring[1].predicted_ns
    assert ring[0].interval_ns == ring[1].interval_ns
    with pytest.raises(ValueError, match="each of the 2 stages, got 1"):
        predict(made, "blueconnect", shape="2x2", bandwidths="1GB")


def test_p3_lets_the_next_step_begin_with_what_it_needs_first():
    machine = {"network_bytes_per_s": 4.096e6}
    made = context(host_training(), **machine)
    plain = predict(made, "data_parallel", ranks=2, contention=1.34).predicted_ns
    sliced = predict(made, "p3", ranks=2, slice=4096.0).predicted_ns
    # 4096 bytes at 4.096 bytes/us, 1.34 times as long: 1340 us each. Together, they are sent from 1100 on; the update
    # was at 1250.
    assert plain == 1e3 * (STEP + 2 * 1340 - (1250 - 1100))
    # Slice by slice: from 800 on, and the next step's forward pass, which was at 2100, waits for the second. So two of
    # three steps take 700 us from its begin and both slices.
    assert sliced == 1e3 * (STEP + 2 * (700 + 2 * 1340)) / 3


def test_a_cuda_graph_leaves_one_launch():
    # 10 us before the copy's call, which returns at 140 us behind the copy; 4 x 60 us of operators and 3 x 140 us of
    # Python until the last launch become 10 us.
    found = predict(context(device_training(sync=False)), "cuda_graph")
    assert found.predicted_ns < found.step_ns
    assert "launches no work" in refusal(host_training(), "cuda_graph")


def test_a_cuda_graph_cannot_wait_for_the_host():
    def said(*extra):
        found = predict(context(device_training(extra=extra, sync=False, pageable=False)), "cuda_graph")
        return found.trust, list(found.notes)

    # Between the first and the second operator, until the first one's kernel ends.
    waits = [launch(1000 * number + 212, 12, 100 * number + 60, "cudaStreamSynchronize") for number in range(3)]
    note = "1 synchronizing calls per step must be removed first: a CUDA graph cannot wait for the host"
    assert said(*waits) == ("low", [note])
    assert said() == ("ok", [])


def test_synchronizations_and_pageable_copies_are_waits():
    made = context(device_training())
    assert predict(made, "remove_sync").predicted_ns <= 1e6
    pinned = {"pinned_bytes_per_s": 20e9, "pageable_bytes_per_s": 10e9}
    waited = predict(context(device_training(), **pinned), "pin_memory")
    # The copy of 100 us halves, and the host still waits for it.
    assert waited.predicted_ns == 950_000
    free = predict(context(device_training(), **pinned), "pin_memory", non_blocking=True)
    assert free.predicted_ns < waited.predicted_ns
    assert "no pageable memory" in refusal(device_training(pageable=False), "pin_memory")
    assert "pinned_bytes_per_s" in refusal(device_training(), "pin_memory")
    # Of one copy the trace tells no rate.
    rate = {"pinned_bytes_per_s": 20e9}
    assert "the bandwidth of pageable memory" in refusal(device_training(1), "pin_memory", rate)


def test_fusion_leaves_the_bytes_that_must_be_moved():
    found = predict(context(device_training(sync=False)), "fusion")
    assert found.predicted_ns <= found.step_ns
    assert "no neighboring operators" in refusal(loading(), "fusion")


def test_folding_batch_norms_is_for_inference():
    events = [e for n in range(3) for e in (step(n, 100 * n, 100), x("aten::batch_norm", 100 * n + 20, 30))]
    # The Python behind it goes, too: 50 us.
    assert step_us(trace(*events), "fold_batch_norm") == 100 - 30 - 50
    training = [x("autograd::engine::evaluate_function: MmBackward0", 5, 5)]
    assert "backward pass" in refusal(trace(*events, *training), "fold_batch_norm")


def reducing(steps=3):
    """Steps of 1000 us: a kernel, a collective of 300 us that the host waits for, then 600 us of Python."""
    events = []
    for number in range(steps):
        at, call = 1000 * number, 100 * number
        events += [
            step(number, at, 1000),
            launch(at, 10, call + 1),
            kernel("mul_kernel", at + 20, 80, call + 1),
            launch(at + 10, 10, call + 2),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 100, 300, call + 2),
            launch(at + 30, 370, call + 3, "cudaStreamSynchronize"),
        ]
    return trace(*events)


def test_a_faster_network_shortens_collectives():
    found = predict(context(reducing()), "bandwidth", factor=3.0)
    # 300 us become 100; where half of it is waiting for others, only the other half does.
    assert found.predicted_ns == 1e3 * (1000 - 200)
    assert found.interval_ns[1] == pytest.approx(1e3 * (1000 - 100), rel=0.01)
    assert step_us(reducing(), "bandwidth", factor=0.5) == 1000 + 300
    assert "the trace has no communication" in refusal(host_training(), "bandwidth", factor=2.0)


def test_hidden_communication_is_an_upper_bound():
    found = predict(context(reducing()), "hide_communication")
    assert found.predicted_ns == 1e3 * (1000 - 300)
    assert found.interval_ns[1] >= 1e6
    assert found.trust == "low"
    assert "the trace has no communication" in refusal(host_training(), "hide_communication")


def test_distributed_instead_of_data_parallel():
    moving = [
        event
        for number in range(3)
        for event in (x("Scatter", STEP * number + 20, 60), x("Gather", STEP * number + 1600, 140))
    ]
    # Both vanish; the gradients, 8192 bytes in 2 us at 4096 bytes/us, are sent while the host runs Python.
    network = {"network_bytes_per_s": 4096e6}
    assert step_us(host_training(extra=moving), "replace_data_parallel", network, ranks=2) == STEP - 60 - 140
    assert "no work of DataParallel" in refusal(host_training(), "replace_data_parallel", network, ranks=2)


def test_compiling_on_a_host_fuses_neighbors():
    """Two of them over 1000 floats read 2 x 4000 bytes and write 4000 each; fused, 2 x 4000 are not moved."""
    shapes = {"Input Dims": [[1000], [1000]], "Input type": ["float", "float"]}
    events = [
        event
        for number in range(3)
        for event in (
            step(number, 1000 * number, 1000),
            x("aten::mul", 1000 * number + 100, 150, **shapes),
            x("aten::add", 1000 * number + 260, 150, **shapes),
        )
    ]
    expected = 1000 - 300 + 300 * (24_000 - 8_000) / 24_000
    assert step_us(trace(*events), "fusion") == expected
    found = predict(context(trace(*events)), "compile")
    assert (found.predicted_ns, found.trust) == (1e3 * expected, "low")
    # The compiler may do nothing of the kind.
    assert found.interval_ns[1] >= 1e6
    assert "no neighboring operators" in refusal(loading(), "compile")
    # One that reads another tensor, of another size, is no neighbor.
    other = {"Input Dims": [[500], [500]], "Input type": ["float", "float"]}
    apart = [{**each, "args": other} if each["name"] == "aten::add" else each for each in events]
    assert "no neighboring operators" in refusal(trace(*apart), "fusion")


def test_batch_norms_split_in_two():
    events = [
        event
        for number in range(3)
        for event in (
            step(number, 100 * number, 100),
            x("aten::batch_norm", 100 * number + 10, 40),
            x("aten::relu", 100 * number + 50, 30),
        )
    ]
    found = predict(context(trace(*events)), "reconstructed_batch_norm")
    # Half of the norm, all of the activation; a third of both at worst, as Daydream found (12.7 % said, 7 % real).
    assert found.predicted_ns == 1e3 * (100 - 20 - 30)
    assert found.interval_ns[1] == pytest.approx(1e3 * (100 - 50 / 3), rel=0.01)
    assert found.trust == "low"
    assert "no batch norm" in refusal(host_training(), "reconstructed_batch_norm")


def test_without_emptying_the_cache_nothing_is_allocated_anew():
    calls = [
        event
        for number in range(3)
        for event in (
            launch(1000 * number + 910, 20, 100 * number + 70, "cudaFree"),
            launch(1000 * number + 940, 40, 100 * number + 71, "cudaMalloc"),
        )
    ]
    assert step_us(device_training(sync=False, extra=calls), "empty_cache") == 1000 - 20 - 40
    assert "no step calls cudaMalloc" in refusal(device_training(), "empty_cache")


def test_leaving_out_a_scope():
    # Two operators of 80 us and the 20 us between them; the Python around these two is not the update's alone.
    assert step_us(host_training(), "remove_scope", name="Optimizer.step*") == STEP - 180
    assert "no annotation Elsewhere" in refusal(host_training(), "remove_scope", name="Elsewhere")


def test_tensor_parallel_halves_the_layers_and_reduces_twice_each_way():
    # Each layer: 200 forward, 280 backward, 90 of update; what comes behind them: 40. Each of the three has 4
    # all-reduces of the 2048 bytes that are handed on, 2 x 1/2 of them at 1024 bytes/us: 2 us.
    found = predict(context(host_training(), network_bytes_per_s=1024e6), "tensor_parallel", devices=2)
    halved = (2 * (200 + 280 + 90) + 40) / 2
    assert found.predicted_ns == pytest.approx(1e3 * (STEP - halved + 3 * 4 * 2), abs=10)
    assert found.trust == "low"


def offloading(steps=3):
    """Steps of 1000 us on a device: two layers of 100 us forward and 150 us backward, which keep 600 bytes each."""
    events, total = [memory(1, 1000, 1, 0, **{"Addr": 9, "Total Allocated": 1000})], 1000
    for number in range(steps):
        at, call, sequence = 1000 * number, 100 * number, 10 * number

        def change(ts, size, address, start=at):
            nonlocal total
            total += size
            return memory(start + ts, size, 1, 0, **{"Addr": address, "Total Allocated": total})

        events.append(step(number, at, 1000))
        for layer in (0, 1):
            begin = 10 + 60 * layer
            events += [
                x(f"perfdl.module: Net.layers.{layer}", at + begin, 50, "user_annotation"),
                linear(at + begin + 5, 40, layer, **{"Sequence number": sequence + layer}),
                launch(at + begin + 10, 10, call + 1 + layer),
                kernel("gemm", at + 100 + 100 * layer, 100, call + 1 + layer),
                change(begin + 12, 600, 1 + 2 * layer),
                change(begin + 30, 200, 2 + 2 * layer),
            ]
        for place, layer in enumerate((1, 0)):
            begin = 200 + 60 * place
            name = "autograd::engine::evaluate_function: MmBackward0"
            events += [
                x(name, at + begin, 50, **{"Sequence number": sequence + layer, "Fwd thread id": 1}),
                x("aten::mm", at + begin + 5, 40, **{"Input Dims": MATRIX, "Input type": ["float", "float"]}),
                launch(at + begin + 10, 10, call + 11 + place),
                kernel("gemm_backward", at + 300 + 150 * place, 150, call + 11 + place),
                change(begin + 42, -600, 1 + 2 * layer),
                change(begin + 44, -200, 2 + 2 * layer),
            ]
        events.append(launch(at + 330, 280, call + 50, "cudaStreamSynchronize"))
    return trace(*events)


def test_vdnn_fetches_back_behind_the_backward_pass_of_the_next_layer():
    # 600 bytes at 6 bytes/us: 100 us, behind 150 us of backward pass.
    assert step_us(offloading(), "vdnn", {"pinned_bytes_per_s": 6e6}) == 1000
    # At 3 bytes/us the layer waits 200 - 150 us, and its launch of 5 us for the copy's.
    assert step_us(offloading(), "vdnn", {"pinned_bytes_per_s": 3e6}) == pytest.approx(1000 + 50, abs=5)
    assert "pinned_bytes_per_s" in refusal(offloading(), "vdnn")
    assert "profile_memory" in refusal(device_training(), "vdnn")
    assert "no device" in refusal(with_memory(), "vdnn", {"pinned_bytes_per_s": 6e6})


def test_together_is_one_after_the_other():
    made = context(host_training())
    mm = WhatIf("mm", Plan().scale(Select(name="aten::mm"), 0.5))
    relu = WhatIf("relu", transform="remove_operator", parameters={"name": "aten::relu", "python": False})
    assert together(made, [mm, relu]).predicted_ns == 1e3 * (STEP - 400 - 80)
    missing = WhatIf("pin", transform="pin_memory")
    assert together(made, [mm, missing]).reason.startswith("pin: no pageable")
    # The first leaves nothing for the second.
    gone = [WhatIf(name, Plan().remove(Selected(parse(["name=aten::mm"]), name))) for name in ("once", "again")]
    assert together(made, gone).reason == "again: 'again' matches nothing in the trace"


def test_an_interval_holds_the_spread_between_steps():
    events = [e for n, us in enumerate((40, 50, 60)) for e in (step(n, 100 * n, 100), x("aten::mm", 100 * n + 10, us))]
    found = predict(context(trace(*events)), WhatIf("none", Plan().scale(Select(name="mm"), 0.0)))
    # Differences of 40, 50 and 60 us: 4.303 x 10 / sqrt(3), and 0.5 % of 50 us.
    half = 4.3027 * 10_000 / np.sqrt(3) + 250
    assert found.interval_ns == pytest.approx((50_000 - half, 50_000 + half), rel=1e-3)
    assert not found.worthwhile or found.gain > found.band


def test_users_add_transforms():
    @transform("test_half")
    def half(context: Context, share: float = 0.5) -> Change:
        """Half of everything."""
        return Change(Plan().scale(Select(), share))

    try:
        assert step_us(host_training(), "test_half") == STEP / 2
        assert parameters("test_half", {"share": "0.25"}) == {"share": 0.25}
        with pytest.raises(ValueError, match="already"):
            transform("test_half")(test_users_add_transforms)
    finally:
        del TRANSFORMS["test_half"]
    with pytest.raises(ValueError, match="there is no optimization 'test_half'; known optimizations: amp"):
        find("test_half")


@pytest.mark.corpus
def test_every_transform_answers_or_refuses_on_public_traces():
    made = dict.fromkeys(("workers", "ranks", "devices", "stages", "to", "now"), 2)
    given = {"shape": "2x2", "name": "aten::mm", "n": 8, **made}
    find("amp")
    for name in ("h100", "nccl_rank0", "alexnet"):
        graph = task_graph(read(corpus_file(name)))
        context_of = Context(graph, Machine(network_bytes_per_s=1e10, pinned_bytes_per_s=1e10))
        base = Base.of(graph)
        for each, function in TRANSFORMS.items():
            wanted = function.__code__.co_varnames[1 : function.__code__.co_argcount]
            defaults = len(function.__defaults__ or ())
            needed = wanted[: len(wanted) - defaults]
            either = {"factor": 2.0} if each == "bandwidth" else {}
            found = predict(context_of, each, base, **either, **{key: given[key] for key in needed})
            assert (found.predicted_ns is None) == (found.trust == "refuse" and bool(found.reason)), each


def test_what_is_given_of_rates_and_ratios_leaves_the_others():
    given = Machine(flops_per_s={"float32": 60e12}, ratios={"bfloat16": {"aten::mm []": (0.4, 0.5, 0.6)}})
    more = {"bfloat16": {"aten::mm []": (1.0, 1.0, 1.0), "aten::add []": (0.9, 1.0, 1.1)}, "channels_last": {}}
    found = given.or_else(Machine(flops_per_s={"float32": 1.0, "bfloat16": 990e12}, ratios=more))
    assert found.flops_per_s == {"float32": 60e12, "bfloat16": 990e12}
    assert found.ratios["bfloat16"] == {"aten::mm []": (0.4, 0.5, 0.6), "aten::add []": (0.9, 1.0, 1.1)}
    assert set(found.ratios) == {"bfloat16", "channels_last"}


@pytest.mark.parametrize("text", ["[]", '{"cores": "8"}', '{"traceEvents": []}', "{"])
def test_a_file_without_a_machines_figures_is_refused(text, tmp_path):
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(ValueError, match=r"broken.json is not a machine.json file: ") as refusal:
        Machine.load(tmp_path / "broken.json")
    assert "\n" not in str(refusal.value)


@pytest.mark.corpus
def test_a_machine_is_what_the_trace_says_or_what_is_given(tmp_path):
    known = machine_of(read(corpus_file("resnet50_workers4")))
    assert known.memory_bytes == 34_084_028_416
    assert known.pageable_bytes_per_s == pytest.approx(6.1e9, rel=0.01)
    assert known.pinned_bytes_per_s is None
    both = Machine(pinned_bytes_per_s=1.0).or_else(known)
    assert (both.pinned_bytes_per_s, both.memory_bytes) == (1.0, known.memory_bytes)
    given = Machine(cores=4, ratios={"bfloat16": {"aten::mm []": (0.1, 0.2, 0.3)}})
    given.save(tmp_path / "machine.json")
    assert Machine.load(tmp_path / "machine.json") == given
