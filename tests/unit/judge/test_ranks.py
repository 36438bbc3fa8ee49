"""A change of a step is blamed on the rank that does more, and not on those that wait for it."""

from types import SimpleNamespace

import pytest

from pytest_perfdl.judge.ranks import COMMUNICATION, blame_ranks, compare_ranks, comparisons, find_explaining, mean_side
from pytest_perfdl.results.curve import RankSide, RankTimes
from pytest_perfdl.results.verdict import Cause

MS = 1_000_000


def times(own, communication=10, *, compute=None, input_=0, host=5, overlap=0.5):
    compute = own - input_ - host if compute is None else compute
    return RankTimes(own * MS, compute * MS, input_ * MS, host * MS, communication * MS, overlap)


def side(*ranks, step=100, collectives=4.0):
    waits = tuple((0,) * len(ranks) for _ in ranks)
    return RankSide(tuple(ranks), step * MS, waits, collectives, 4000.0)


BASE = side(times(90), times(90))


@pytest.mark.parametrize(
    "ranks, step, rank, cause",
    [
        # Rank 1 computes 20 ms more, and rank 0 waits for it.
        ((times(90, 30), times(110, 10)), 120, 1, "compute"),
        ((times(110, 10), times(90, 30)), 120, 0, "compute"),
        ((times(90, 30), times(110, 10, input_=20)), 120, 1, "input"),
        ((times(90, 30), times(110, 10, host=25)), 120, 1, "host"),
        # Both compute more: no rank's fault.
        ((times(110), times(109)), 120, None, "compute"),
        # Neither does: the collectives take longer.
        ((times(90, 30), times(90, 30)), 120, None, COMMUNICATION),
        # A little more work, and much more communication.
        ((times(90, 30), times(95, 25)), 120, None, COMMUNICATION),
        # Faster again: the rank that does less.
        ((times(90, 5), times(70, 5)), 80, 1, "compute"),
        # The work moved from rank 0 to rank 1.
        ((times(70, 40), times(105, 5)), 110, 1, "compute"),
    ],
)
def test_who_is_at_fault(ranks, step, rank, cause):
    found = compare_ranks("", BASE, side(*ranks, step=step))
    assert (found.rank, found.cause) == (rank, cause)


def test_what_others_had_of_the_cpu_hides_no_rank():
    # All profiled steps took 40 ms longer, because other processes ran; own work is without that.
    found = compare_ranks("", BASE, side(times(90, 30), times(110, 10), step=160))
    assert (found.rank, found.cause) == (1, "compute")


def test_a_step_that_did_not_change_has_no_cause():
    assert compare_ranks("", BASE, BASE).cause is None
    assert compare_ranks("", BASE, side(times(90), times(90), times(90), step=120)).cause is None


def test_the_breakdown_is_that_of_the_rank_at_fault_or_of_the_one_that_changed_most():
    assert find_explaining(compare_ranks("", BASE, side(times(90, 30), times(110, 10), step=120))) == 1
    assert find_explaining(compare_ranks("", BASE, side(times(90, 15), times(90, 35), step=120))) == 1
    assert find_explaining(compare_ranks("", BASE, side(times(90, 35), times(90, 15), step=120))) == 0


def cause(name, delta, call=""):
    return Cause("operator", name, call, 1, 1, 10 * MS, 10 * MS + delta * MS, 1.0)


def test_causes_of_a_straggler_name_its_rank():
    compared = {"": compare_ranks("", BASE, side(times(90, 30), times(110, 10), step=120))}
    first, other = blame_ranks((cause("aten::mm", 20), cause("aten::mm", 1, "other")), compared)
    assert (first.rank, other.rank) == (1, None)


def test_communication_comes_first_with_its_own_time():
    slow = side(times(90, 30, overlap=0.0), times(90, 34), step=122, collectives=48.0)
    known = cause("aten::copy_", 1), Cause("idle", COMMUNICATION, "", 1, 1, 5, 7, 0.1)
    first, *rest = blame_ranks(known, {"": compare_ranks("", BASE, slow)})
    assert (first.kind, first.name, first.rank) == ("idle", COMMUNICATION, None)
    # From 10 to (30 + 34) / 2 ms, of a step that takes 22 ms more.
    assert (first.base_ns, first.new_ns, first.base_count, first.new_count) == (10 * MS, 32 * MS, 4.0, 48.0)
    assert first.share == pytest.approx(1.0)
    assert [each.name for each in rest] == ["aten::copy_"]


def test_rounds_are_averaged_before_they_are_compared():
    def one(new, base=BASE):
        ranks = {name: {"": SimpleNamespace(side=each)} for name, each in (("ranks_base", base), ("ranks_head", new))}
        return SimpleNamespace(**ranks)

    # Which rank waits is chance in a single round; the means tell.
    slow = [side(times(90, 30), times(own, 10), step=120) for own in (130, 100, 100)]
    found = comparisons([one(each) for each in slow])[""]
    assert found.new.ranks[1].own_ns == 110 * MS
    assert found.rank == 1
    assert comparisons([]) == {}
    assert mean_side([BASE]) == BASE
