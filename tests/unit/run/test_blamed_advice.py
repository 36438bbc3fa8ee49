"""What a judgement blames, as tasks of the new side's trace."""

import pytest

from pytest_perfdl.run.advice import blamed
from pytest_perfdl.whatif import task_graph
from pytest_perfdl.whatif.advice import advise
from unit.report.runs import cause
from unit.whatif.training import context, device_training, host_training

SLOWER = {"base": (2, 100_000), "new": (2, 200_000)}


def idle(name):
    return cause(name, **SLOWER, kind="idle")


def names(trace, *causes):
    graph = task_graph(trace)
    chosen = blamed(causes)(graph)
    return {graph.names[name] for name in graph.tasks.name[chosen].tolist()}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (cause("aten::add_", **SLOWER), {"aten::add_"}),
        (cause("aten::add", **SLOWER), set()),
        (cause("aten::add_", (1, 100_000), (2, 90_000)), {"aten::add_"}),
        (cause("aten::add_", (2, 200_000), (2, 100_000)), set()),
        (
            cause("aten::relu, ... and 2 more", **SLOWER, members=("aten::relu", "aten::add_")),
            {"aten::relu", "aten::add_"},
        ),
        (cause("a -> b", **SLOWER, members=("aten::_foreach_add_", "aten::add_")), {"aten::add_"}),
        (idle("Python and host"), {"Python and host"}),
        (idle("train.py(3): step"), {"Python and host"}),
        (idle("Optimizer.step#SGD.step"), {"aten::add_", "Python and host"}),
        (idle("input"), set()),
        (idle("device wait"), set()),
    ],
    ids=[
        "operator",
        "other",
        "more",
        "faster",
        "list",
        "exchange",
        "python",
        "function",
        "annotation",
        "input",
        "wait",
    ],
)
def test_on_the_host(found, expected):
    assert names(host_training(), found) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (cause("mul_kernel", **SLOWER, kind="kernel"), {"mul_kernel"}),
        (
            cause("Memcpy HtoD (Pageable -> Device)", **SLOWER, kind="kernel"),
            {"Memcpy HtoD (Pageable -> Device)"},
        ),
        (idle("synchronization"), {"cudaMemcpyAsync", "cudaStreamSynchronize"}),
        (idle("launch latency"), {"cudaLaunchKernel", "cudaStreamSynchronize"}),
    ],
    ids=["kernel", "copy", "synchronization", "launches"],
)
def test_with_a_device(found, expected):
    assert names(device_training(), found) == expected


def test_an_operator_has_what_it_launches():
    assert {"aten::mul", "cudaLaunchKernel", "mul_kernel"} <= names(device_training(), cause("aten::mul", **SLOWER))


def test_a_module_narrows_where_the_trace_knows_it():
    graph = task_graph(host_training())

    def count(**place):
        return int(blamed([cause("aten::mm", **SLOWER, **place)])(graph).sum())

    # Two layers, forward and backward, in three steps.
    assert (count(), count(module="Net.layers.0"), count(module="Net.absent")) == (12, 6, 12)


def test_advice_on_what_is_blamed():
    updates = context(host_training(), memory_bytes_per_s=1e12)
    assert [each.finding for each in advise(updates, within=blamed([cause("aten::add_", **SLOWER)]))] == ["optimizer"]
    assert advise(updates, within=blamed([cause("aten::relu", **SLOWER)])) == ()
    assert advise(updates, within=blamed([])) == ()
