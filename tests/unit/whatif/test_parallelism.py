"""Layers over devices: stages by hand, the pipeline's bubble, and the search over degrees."""

import pytest

from pytest_perfdl.model.errors import MissingConstant
from pytest_perfdl.whatif import simulate
from pytest_perfdl.whatif.predict import predict
from pytest_perfdl.whatif.strategy import (
    DeviceLayout,
    LayerCost,
    Network,
    graph_of_stages,
    layer_costs,
    peak_bytes,
    search,
    stages,
)
from unit.whatif.training import context, host_training, with_memory

FAST = Network(1e15)


def layer(forward=100.0, backward=200.0, *, host=0.0, update=0.0, parameters=0.0, kept=0.0, sent=0.0):
    return LayerCost("layer", forward, backward, host, host, update, parameters, kept, sent)


def span(layers, network=FAST, **layout):
    return simulate(graph_of_stages(layers, DeviceLayout(**layout), network)).span_ns


@pytest.mark.parametrize(
    ("times", "count", "sizes"),
    [([1, 1, 1, 1], 2, [2, 2]), ([3, 1, 1, 1], 2, [1, 3]), ([1, 1, 5], 3, [1, 1, 1])],
    ids=["equal", "one is slow", "one each"],
)
def test_the_slowest_stage_is_as_fast_as_can_be(times, count, sizes):
    found = stages([layer(time, 0) for time in times], count)
    assert [len(group) for group in found] == sizes


@pytest.mark.parametrize(("devices", "batches"), [(2, 1), (2, 4), (4, 8), (3, 5)], ids=["2-1", "2-4", "4-8", "3-5"])
def test_the_bubble_of_equal_stages(devices, batches):
    # m micro-batches of p stages take (m + p - 1) / m of the work of a stage.
    each = 1200 * batches
    layers = [layer(each, 2 * each) for _ in range(devices)]
    assert span(layers, pipeline=devices, micro_batches=batches) == (batches + devices - 1) * 3 * 1200


def test_one_device_does_it_all():
    assert span([layer(update=50)] * 3) == 3 * (300 + 50)


def test_the_host_is_not_divided_by_micro_batches():
    assert span([layer(100, 200, host=90)], micro_batches=4) == 4 * (90 + 90)


def test_what_is_handed_on_travels():
    # 100 bytes at 1 byte/ns, forward and back.
    network = Network(1e9)
    assert span([layer(sent=100), layer(sent=100)], network, pipeline=2) == 2 * 300 + 2 * 100


def test_gradients_are_reduced_while_the_last_backward_pass_runs():
    network = Network(1e9)
    # Half the batch: 50 + 100, 400 bytes over a ring of 2 from the start of the backward pass, then the update.
    assert span([layer(update=10, parameters=400)], network, data=2) == 50 + 400 + 10
    assert span([layer(update=10, parameters=40)], network, data=2) == 50 + 100 + 10


def test_tensor_parallel_layers_reduce_twice_each_way():
    network = Network(1e9)
    assert span([layer(sent=30, update=20)], network, tensor=2) == 50 + 100 + 2 * (2 * 30) + 10


def test_memory_of_the_fullest_device():
    layers = [layer(parameters=100, kept=1000)] * 2
    # Parameters, gradients and two states: 400 each.
    assert peak_bytes(layers, DeviceLayout(), 2) == 2 * 1400
    assert peak_bytes(layers, DeviceLayout(pipeline=2, micro_batches=4), 2) == 400 + 1000 * 2 / 4
    assert peak_bytes(layers, DeviceLayout(data=2), 2) == 2 * (500 + 500)
    assert peak_bytes(layers, DeviceLayout(tensor=2), 2) == 1400


def test_fewer_layers_than_stages():
    with pytest.raises(ValueError, match="1 layers cannot be divided into 2 stages"):
        graph_of_stages([layer()], DeviceLayout(pipeline=2), FAST)


def test_costs_of_the_layers_of_a_trace():
    made = context(with_memory())
    costs = {cost.name: cost for cost in layer_costs(made)}
    first = costs["Net.layers.0"]
    assert (first.forward_ns, first.backward_ns, first.kept_bytes) == (200_000, 280_000, 600)
    # Half of 2048 parameters; half of 180 us of update; 16 x 32 floats are handed on.
    assert (first.parameter_bytes, first.update_ns, first.sent_bytes) == (4096, 90_000, 2048)


def test_the_search_ranks_what_fits_by_time():
    made = context(with_memory(), network_bytes_per_s=1e12)
    found = search(made, 2)
    layouts = {(each.layout.data, each.layout.pipeline, each.layout.tensor) for each in found}
    assert layouts == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}
    assert [each.step_ns for each in found] == sorted(each.step_ns for each in found)
    least = min(each.peak_bytes for each in found)
    limited = search(context(with_memory(), network_bytes_per_s=1e12, memory_bytes=least), 2)
    assert limited[0].peak_bytes == least
    assert [each.fits for each in limited] == sorted((each.fits for each in limited), reverse=True)
    with pytest.raises(MissingConstant, match="network_bytes_per_s"):
        search(context(with_memory()), 2)


def test_layers_on_two_devices_take_turns():
    made = context(host_training(), network_bytes_per_s=1e15)
    found = predict(made, "model_parallel", devices=2)
    # Each device updates its own parameters while the other is done: half of the update is saved.
    assert found.predicted_ns == pytest.approx(found.step_ns - 90_000, abs=10)
    assert found.trust == "low"
    piped = predict(made, "pipeline_parallel", stages=2, micro_batches=4)
    assert piped.predicted_ns < found.predicted_ns
