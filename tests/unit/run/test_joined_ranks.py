"""Replies of several ranks become the reply of one job."""

from dataclasses import replace

import numpy as np
import pytest

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.ranks import RankActivity, Traffic, compare
from pytest_perfdl.analysis.ranks.activity import StepTimes
from pytest_perfdl.analysis.ranks.calls import Calls
from pytest_perfdl.judge.ranks import traffic
from pytest_perfdl.measure.commands import CallResult, Compiled, Settled
from pytest_perfdl.model.record import Finding
from pytest_perfdl.run.assemble import _counted_series, _timed_values
from pytest_perfdl.run.joined_ranks import joined, metrics
from unit.measure.answers import COUNTED, info, profiled, timed, without

MS = 1_000_000


def test_a_call_of_all_ranks_has_the_items_of_all():
    both = joined([info(items=4.0, name="step"), info(items=6.0, name="step")])
    assert (both.name, both.items) == ("step", 10.0)
    assert joined([info(), info()]).items is None


def test_a_job_is_as_slow_as_its_slowest_rank():
    fast, slow = timed(10, 10, 10, 10, blocks=2), timed(30, 11, 11, 11, blocks=2)
    job = joined([fast, slow])
    assert job.step_ns == slow.step_ns
    assert [block.wall_ns for block in job.blocks] == [41, 22]
    assert job.ranks == (fast, slow)


def test_what_holds_up_one_rank_holds_up_the_job():
    # Rank 1 is slower altogether; rank 0 waits for its loader, works more and waited for a CPU in its second step.
    first = timed(10, 10, wait_ns=(3, 4), delay_ns=(0, 5), cpu_ns=18)
    second = timed(11, 11, wait_ns=(1, 0), delay_ns=(2, 1), cpu_ns=7)
    job = joined([first, second])
    assert job.step_ns == (11, 11)
    assert (job.wait_ns, job.delay_ns) == ((3, 4), (2, 5))
    assert [(block.wall_ns, block.cpu_ns, block.run_delay_ns) for block in job.blocks] == [(22, 18, 5)]


def test_ranks_have_settled_when_all_have():
    steps = joined([Settled(20, True, 0.01, 100), Settled(20, False, -0.2, 300)])
    assert steps == Settled(20, False, -0.2, 300)


def test_counts_add_up_and_memory_is_that_of_the_rank_that_needs_most():
    job = joined(
        [COUNTED, replace(COUNTED, counts={**COUNTED.counts, "peak_memory": 500.0, "flops": 8.0, "growth": 7.0})]
    )
    assert job.counts == {
        "flops": 20.0,
        "allocations": 6.0,
        "alloc_bytes": 128.0,
        "peak_memory": 500.0,
        "static_memory": 32.0,
        "growth": 7.0,
    }
    assert "flops" not in joined([COUNTED, without(COUNTED, "flops")]).counts


def test_a_finding_of_one_rank_names_it():
    all_have, one_has = Finding("note", "a", "of all"), Finding("note", "b", "of one")
    job = joined([Compiled(False, 0, 0, 0, (all_have,)), Compiled(True, 5, 1, 2, (all_have, one_has))])
    assert [finding.message for finding in job.findings] == ["of all", "rank 1: of one"]
    assert (job.used, job.compile_ns, job.recompiles, job.graph_breaks) == (True, 5, 1, 2)


def calls(*spans, exposed=1.0):
    """All-reduces of 1000 bytes in a group of two, at these moments in one step."""
    count = len(spans)
    start, end = (np.array(column, dtype=np.int64) for column in zip(*spans, strict=True))
    same = {name: np.full(count, value, dtype=np.int64) for name, value in (("bytes", 1000), ("group_size", 2))}
    return Calls(
        name=("gloo:all_reduce",) * count,
        kinds=("all_reduce",) * count,
        group=("0",) * count,
        members=((0, 1),) * count,
        sequence=np.arange(count, dtype=np.int64),
        start=start,
        end=end,
        issued=start,
        ready=start,
        step=np.zeros(count, dtype=np.intp),
        peer=np.full(count, -1, dtype=np.int64),
        exposed_ns=((end - start) * exposed).astype(np.int64),
        row=np.arange(count, dtype=np.intp),
        **same,
    )


def rank(number, *spans, window=100 * MS):
    """One step of 100 ms that computes wherever it is in no collective."""
    own = calls(*spans)
    inside = int((own.end - own.start).sum())
    column = {name: np.array([value], dtype=np.int64) for name, value in (("zero", 0), ("window", window))}
    steps = StepTimes(
        number=(3,),
        start=column["zero"],
        end=column["window"],
        window_ns=column["window"],
        compute_ns=column["window"] - inside,
        input_ns=column["zero"],
        host_ns=column["zero"],
        exposed_communication_ns=np.array([inside]),
        exposed_copies_ns=column["zero"],
        communication_ns=np.array([inside]),
        account={},
    )
    return RankActivity(
        source=f"rank{number}",
        rank=number,
        world_size=2,
        host="here",
        groups={"0": (0, 1)},
        on_device=False,
        begin_ns=0,
        span_ns=window,
        busy_ns=0,
        compute_ns=0,
        communication_ns=inside,
        exposed_communication_ns=inside,
        overlap=0.0,
        steps=steps,
        calls=own,
        exposed=Intervals(own.start, own.end),
        compute=Intervals.between(0, 0),
        input=Intervals.between(0, 0),
        late=Intervals.between(0, 0),
    )


def job(*ranks):
    parts = [replace(profiled(), activity=each, traffic=each.traffic) for each in ranks]
    return joined(parts)


def test_waiting_is_told_from_own_work():
    # Rank 1 comes 40 ms late to a collective that then takes 10 ms: rank 0 waits 40 of its 100 ms, so that its own work
    # is 60 ms and that of rank 1 is 100 ms.
    found = metrics(job(rank(0, (40 * MS, 90 * MS)), rank(1, (80 * MS, 90 * MS))))
    assert found["rank_spread"] == 40 * MS
    assert found["collective_wait"] == 20 * MS
    # 1000 bytes in 10 ms, times 2 (n - 1) / n = 1.
    assert found["bus_bandwidth"] == pytest.approx(100_000)
    assert found["overlap"] == 0.0
    # 50 and 10 of 100 ms each.
    assert found["exposed_communication"] == pytest.approx(30.0)


def test_communication_is_counted_over_all_ranks():
    spans = ((10 * MS, 20 * MS), (50 * MS, 60 * MS))
    whole = job(rank(0, *spans), rank(1, *spans))
    assert traffic(whole) == {"collectives": 4.0, "collective_bytes": 4000.0}
    # One call whose size the trace does not say makes the sum unknown, and not smaller.
    first = whole.ranks[0]
    unknown = replace(first, traffic=(Traffic("all_reduce", (2,), (None,)),))
    assert traffic(replace(whole, ranks=(unknown, whole.ranks[1]))) == {"collectives": 4.0}


def test_a_job_counts_the_operators_of_all_ranks():
    part = replace(profiled(), counts={"ops": (7, 7)}, activity=rank(0, (0, MS)), traffic=())
    both = joined([part, replace(part, counts={"ops": (5, 5)}, activity=rank(1, (0, MS)))])
    steps = CallResult(info(), Settled(1, True, 0.0), timed(10, 10), both, COUNTED, Compiled(False, 0, 0, 0))
    assert _counted_series([steps])["ops"].values == (12.0,)
    assert "rank_spread" in _timed_values(steps, None)


def test_without_ranks_there_is_nothing_to_compare():
    assert metrics(profiled()) == {}
    assert traffic(profiled()) == {}
    assert joined([info()]) == info()
    with pytest.raises(ValueError, match="no traces"):
        compare([])
