"""Advice: planted waste is named first, well-tuned steps get none, and what cannot be predicted is not promised."""

import pytest

from pytest_perfdl.trace import read
from pytest_perfdl.whatif import Select, task_graph
from pytest_perfdl.whatif.advice import EXAMPLES, advise, notes
from pytest_perfdl.whatif.transform import Context
from unit.trace.chrome import corpus_file, kernel, launch, step, trace, x
from unit.whatif.training import context, device_training, host_training


def kinds(found):
    return [advice.finding for advice in found]


def busy(extra=lambda at, call: [], gap=0):
    """Steps whose kernels leave the device no pause: the host launches 100 us of kernels in 20 us."""
    events = []
    for number in range(4):
        at, call = 1000 * number, 100 * number
        events.append(step(number, at, 1000 + gap))
        for place in range(10):
            events += [
                launch(at + 5 + 10 * place, 5, call + place + 1),
                kernel("gemm", at + 20 + 98 * place, 98, call + place + 1),
            ]
        events += extra(at, call)
    return trace(*events)


def test_loading_is_named_first():
    events = []
    for number in range(3):
        at = 1000 * number
        events += [
            step(number, at, 1000),
            x("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 600, "user_annotation"),
            x("aten::mm", at + 600, 400),
        ]
    found = advise(context(trace(*events)))
    assert kinds(found) == ["input"]
    assert found[0].how == "DataLoader(num_workers=2)"
    assert found[0].example == f"{EXAMPLES}/test_async_loading.py"
    assert found[0].prediction.gain == pytest.approx(0.55)


def test_a_launch_bound_step():
    found = advise(context(device_training(sync=False, pageable=False)))
    assert kinds(found)[0] == "launches"


def test_a_device_that_never_waits_needs_no_advice():
    assert advise(context(busy())) == ()


def test_allocating_from_the_device():
    def allocate(at, call):
        return [launch(at + 110, 800, call + 50, "cudaFree")]

    found = advise(context(busy(allocate)))
    # Freeing waits for the device, which is busy anyway: nothing is gained, and nothing said.
    assert "allocator" not in kinds(found)


def test_an_update_one_by_one():
    updates = context(host_training(), memory_bytes_per_s=1e12)
    assert kinds(advise(updates)) == ["optimizer"]
    # Without the bandwidth a fused update is not promised, and foreach gains next to nothing on a CPU.
    assert advise(context(host_training())) == ()


def test_only_the_blamed_scope():
    updates = context(host_training(), memory_bytes_per_s=1e12)
    assert kinds(advise(updates, within=Select(operator="aten::add_"))) == ["optimizer"]
    assert advise(updates, within=Select(layer="Net.layers.0")) == ()


def test_nothing_is_advised_from_a_trace_that_explains_nothing():
    lost = trace(launch(0, 5, 1), kernel("a", 10, 10, 1), launch(15, 5, 2), kernel("b", 900, 10, 2))
    assert advise(context(lost)) == ()


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["resnet50_workers0", "resnet50_workers4", "h100", "nccl_rank0", "alexnet", "mi300"])
def test_advice_on_public_traces_is_worthwhile(name):
    made = Context(task_graph(read(corpus_file(name))))
    found = advise(made)
    gains = [advice.prediction.gain for advice in found]
    assert gains == sorted(gains, reverse=True)
    assert all(advice.prediction.gain > max(0.02, advice.prediction.band) for advice in found)
    assert all(note.share >= 0.02 for note in notes(made))
    if name == "resnet50_workers0":
        assert kinds(found)[0] == "input"
    if name == "resnet50_workers4":
        assert "input" not in kinds(found)


def test_a_full_queue_is_explained():
    from unit.whatif.from_trace.test_graph import back_pressure

    [note] = notes(context(trace(*back_pressure(10, count=1300)[0])))
    assert note.kind == "queue"
    assert "faster launches gain nothing" in note.text
