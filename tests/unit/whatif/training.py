"""A training step written by hand, on the host alone or with a device: two layers, a backward pass, an update."""

from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.whatif import task_graph
from pytest_perfdl.whatif.transform import Context
from unit.trace.chrome import kernel, launch, memory, step, trace, x

STEP = 2000
MATRIX = [[16, 32], [32, 32]]


def linear(ts, dur, layer, **more):
    """A matrix product of a layer: 2 * 16 * 32 * 32 FLOPs."""
    return x("aten::mm", ts, dur, **{"Input Dims": MATRIX, "Input type": ["float", "float"], **more})


def host_step(number, at, product_last=False):
    """400 us forward, 600 us backward (the layers in reverse), 200 us update, 200 us of Python between.

    Each layer: 150 us of mm, 10 us of Python, 40 us of relu, or relu first; backward 300 us.
    """
    sequence, relu = 10 * number, {"Input Dims": [[16, 32]], "Input type": ["float"]}
    events = [step(number, at, STEP)]
    for layer in (0, 1):
        begin = at + 100 + 200 * layer
        events += [
            x(f"perfdl.module: Net.layers.{layer}", begin, 200, "user_annotation"),
            linear(begin + 50 * product_last, 150, layer, **{"Sequence number": sequence + layer}),
            x("aten::relu", begin + 160 * (not product_last), 40, **relu),
        ]
    for place, layer in enumerate((1, 0)):
        begin = at + 500 + 300 * place
        name = "autograd::engine::evaluate_function: MmBackward0"
        events += [
            x(name, begin, 280, **{"Sequence number": sequence + layer, "Fwd thread id": 1}),
            x("aten::mm", begin + 10, 250, **{"Input Dims": MATRIX, "Input type": ["float", "float"]}),
            x("torch::autograd::AccumulateGrad", begin + 280, 20, **{"Input Dims": [[32, 32]]}),
        ]
    events.append(x("Optimizer.step#SGD.step", at + 1200, 300, "user_annotation"))
    added = {"Input Dims": [[32, 32], [32, 32]], "Input type": ["float", "float"]}
    events += [x("aten::add_", at + 1250 + 100 * place, 80, **added) for place in (0, 1)]
    return events


def host_training(steps=3, extra=(), product_last=False, **top):
    """Steps of 2000 us, of which the last 500 are Python."""
    events = [event for number in range(steps) for event in host_step(number, STEP * number, product_last)]
    return trace(*events, *extra, **top)


def with_memory(steps=1):
    """The same with allocations: 1000 bytes before, and each layer 600 for its backward pass and 200 handed on."""
    events = [memory(1, 1000, **{"Addr": 9, "Total Allocated": 1000})]
    total = 1000
    for number in range(steps):
        at = STEP * number

        def change(ts, size, address, start=at):
            nonlocal total
            total += size
            return memory(start + ts, size, **{"Addr": address, "Total Allocated": total})

        events += [
            change(110, 600, 1),
            change(290, 200, 2),
            change(310, 600, 3),
            change(490, 200, 4),
            change(780, -600, 3),
            change(790, -200, 4),
            change(1080, -600, 1),
            change(1090, -200, 2),
        ]
    return host_training(steps, events)


def context(made, **machine):
    """What a transform sees."""
    return Context(task_graph(made), Machine(**machine))


def device_training(steps=3, extra=(), *, sync=True, pageable=True):
    """Launch-bound: 4 kernels of 50 us a step, launched every 200 us, behind a copy that the host waits for."""
    events = []
    for number in range(steps):
        at, call = 1000 * number, 100 * number
        where = "Pageable" if pageable else "Pinned"
        events += [
            step(number, at, 1000),
            launch(at + 10, 130, call + 1, "cudaMemcpyAsync"),
            kernel(f"Memcpy HtoD ({where} -> Device)", at + 30, 100, call + 1, cat="gpu_memcpy", bytes=1_000_000),
        ]
        for place in range(4):
            begin = at + 150 + 200 * place
            events += [
                x("aten::mul", begin, 60, **{"Input Dims": [[1000], [1000]], "Input type": ["float", "float"]}),
                launch(begin + 10, 5, call + 10 + place),
                kernel("mul_kernel", begin + 20, 50, call + 10 + place),
            ]
        if sync:
            events.append(launch(at + 900, 10, call + 50, "cudaStreamSynchronize"))
    return trace(*events, *extra)
