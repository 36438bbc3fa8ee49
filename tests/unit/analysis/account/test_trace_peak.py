"""The account of a peak from a trace that recorded memory, added up by hand and against the trace's own totals."""

import pytest

from pytest_perfdl.analysis.account.peak import trace_accounts
from pytest_perfdl.analysis.overview.memory_timeline import memory_timeline
from pytest_perfdl.trace import TraceError, read
from unit.trace.chrome import corpus, memory, step, trace, x


class _Allocator:
    """Memory events of one device with the allocator's own totals."""

    def __init__(self, base=0, device_type=0, device_id=-1):
        self.total, self.device = base, (device_type, device_id)

    def __call__(self, ts, size, address):
        self.total += size
        return memory(ts, size, *self.device, Addr=address, **{"Total Allocated": self.total, "Total Reserved": 0})


NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def training(base=0):
    """A step: an activation that the backward pass frees, a gradient that it leaves, a temporary of each pass."""
    host = _Allocator(base)
    return (
        step(0, 0, 1000),
        x("aten::linear", 100, 100),
        host(110, 4000, 1),
        host(120, 100, 2),
        host(130, -100, 2),
        x(NODE, 400, 200, **{"Sequence number": 7}),
        host(410, 300, 3),
        host(420, 800, 4),
        host(430, -300, 3),
        host(440, -4000, 1),
        host(900, -800, 4),
    )


def test_categories_are_told_from_who_allocates_and_when_it_is_freed():
    (account,) = trace_accounts(trace(*training(base=10_000)))
    assert account.by_category() == {"gradients": 800, "activations": 4000, "temporaries": 300, "other": 10_000}
    assert (account.device, account.peak_bytes, account.residual) == ("cpu", 15_100, 0)
    assert (account.at_ns, account.step_ns) == (420_000, 1_000_000)
    assert {(row.category, row.phase, row.operator) for row in account.rows if row.category != "other"} == {
        ("activations", "forward", "aten::linear"),
        ("temporaries", "backward", NODE),
        ("gradients", "backward", NODE),
    }
    assert [(row.bytes, row.lives_from, row.lives_to) for row in account.passed] == [(100, 120_000, 130_000)]


def test_the_step_with_the_highest_peak_is_accounted_for():
    host = _Allocator()
    events = []
    for number, size in enumerate((100, 900, 300)):
        begin = 1000 * number
        events += [step(number, begin, 1000), host(begin + 10, size, 5), host(begin + 20, -size, 5)]
    (account,) = trace_accounts(trace(*events))
    assert (account.peak_bytes, account.at_ns) == (900, 10_000)


def test_what_is_left_of_an_earlier_step_is_kept():
    host = _Allocator()
    (account,) = trace_accounts(
        trace(step(0, 0, 1000), host(10, 70, 1), step(1, 1000, 1000), host(1010, 30, 2), host(1020, -30, 2))
    )
    assert {(row.bytes, row.kept) for row in account.rows} == {(70, True), (30, False)}


def test_each_device_has_its_own():
    host, device = _Allocator(base=5), _Allocator(base=1000, device_type=1, device_id=0)
    found = trace_accounts(trace(step(0, 0, 100), host(1, 10, 1), device(2, 500, 1), host(3, -10, 1)))
    assert [(account.device, account.peak_bytes, account.residual) for account in found] == [
        ("cuda:0", 1500, 0),
        ("cpu", 15, 0),
    ]


def test_a_trace_without_steps_is_one():
    host = _Allocator()
    (account,) = trace_accounts(trace(x("aten::mm", 0, 10), host(1, 64, 1), host(2, -64, 1)))
    assert (account.peak_bytes, account.residual) == (64, 0)


@pytest.mark.parametrize("events", [(), (memory(1, 64, 0, -1),)])
def test_without_addresses_there_is_none(events):
    assert trace_accounts(trace(step(0, 0, 100), *events)) == ()


@pytest.mark.corpus
@pytest.mark.parametrize("path", corpus(), ids=lambda path: path.name)
def test_real_traces_close_at_the_peak_of_their_totals(path):
    try:
        found = read(path)
    except TraceError:
        pytest.skip("no trace that can be read")
    peaks = {each.device: each.peak_allocated_bytes for each in memory_timeline(found)}
    for account in trace_accounts(found):
        assert account.residual == 0
        assert account.peak_bytes <= peaks[account.device]
