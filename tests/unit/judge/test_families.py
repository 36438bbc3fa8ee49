"""The rule for many cases: its promise over all signs there are, what is named, and the mutants that break it."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_perfdl.judge import families
from pytest_perfdl.judge.families import LEAST_MEMBERS, MOST_NODES, Family, Limits, Node, Ratios, Tree, grow_tree
from pytest_perfdl.judge.stopping_rule import ALPHA, Spent
from pytest_perfdl.stats.evidence import Coin, evidence, least_rounds

LIMITS = Limits(math.log1p(0.05), math.log1p(0.01))
NOTHING = Spent(0.0, 300.0)


def family(cases, *groups, tests=1):
    """A family of so many cases, with all of them and these groups of places as nodes."""
    nodes = [Node({}, tuple(range(cases)))] if cases >= LEAST_MEMBERS else []
    nodes += [Node({"axis": f"{number}"}, tuple(group)) for number, group in enumerate(groups)]
    return Family(Tree(tuple(f"case {number}" for number in range(cases)), tuple(nodes)), LIMITS, tests)


def noise(rounds, cases, *, seed=0, own=0.02, shared=0.01):
    """Log ratios of unchanged cases, (rounds, cases), with a part that a process gives all of its cases."""
    drawn = np.random.default_rng(seed)
    return own * drawn.standard_t(3, (rounds, cases)) + shared * drawn.standard_normal((rounds, 1))


def orders(rounds):
    """Both orders in turn."""
    return tuple(number % 2 == 0 for number in range(rounds))


def measured(rule, values, *, budget=math.inf, keep=False):
    """The outcome after these rounds, each with only the cases that the rule asks for; and how many were run."""
    seen = np.empty((0, values.shape[1]))
    which = frozenset(range(values.shape[1]))
    for count, row in enumerate(values, 1):
        own = np.full(values.shape[1], np.nan)
        own[sorted(which)] = row[sorted(which)]
        seen = np.vstack([seen, own])
        outcome = rule.look(Ratios(seen, orders(count)), Spent(count, budget))
        if not outcome.open:
            return outcome, count
        if not keep:
            which = outcome.next
    return outcome, count


def named(rule, outcome):
    """Ids of the cases, and groups, that are named."""
    cases = [case for case, each in zip(rule.tree.cases, outcome.cases, strict=True) if each.standing == "regressed"]
    return cases, [dict(node.where) for node, _ in families.name_groups(rule.tree, outcome)]


# The tree.


def test_the_nodes_are_all_cases_axis_values_and_operators_of_the_baseline():
    ids = [f"dtype={dtype},size={size}" for dtype in ("float32", "float16") for size in range(5)]
    axes = {case: dict(part.split("=") for part in case.split(",")) for case in ids}
    operators = {case: {"aten::mm", "aten::add"} if "float16" in case else {"aten::mm"} for case in ids}
    tree = grow_tree(ids, axes, operators)
    # aten::add is the set of float16, aten::mm that of all; values of `size` have two members each.
    assert [dict(node.where) for node in tree.nodes] == [{}, {"dtype": "float16"}, {"dtype": "float32"}]
    assert [node.members for node in tree.nodes] == [tuple(range(10)), (5, 6, 7, 8, 9), (0, 1, 2, 3, 4)]
    assert tree.case_weight == pytest.approx(0.05)
    assert tree.node_weight == pytest.approx(1 / 6)


def test_an_operator_that_only_some_run_is_a_node():
    ids = [f"n={number}" for number in range(12)]
    tree = grow_tree(ids, {}, {case: {"aten::mm"} for case in ids[:7]})
    assert [(dict(node.where), len(node.members)) for node in tree.nodes] == [({}, 12), ({"operator": "aten::mm"}, 7)]


def test_at_most_forty_nodes_the_largest():
    ids = [f"{number}" for number in range(600)]
    axes = {case: {"three": str(number // 3), "seven": str(number // 7)} for number, case in enumerate(ids)}
    axes |= {case: {**axes[case], "nine": str(number // 9)} for number, case in enumerate(ids)}
    tree = grow_tree(ids, axes, {})
    assert len(tree.nodes) == MOST_NODES
    assert [len(node.members) for node in tree.nodes] == [600, *[9] * 39]


@pytest.mark.parametrize("ids", [[], ["a", "b", "a"]])
def test_a_family_needs_cases_each_once(ids):
    with pytest.raises(ValueError, match="needs cases, each of them once"):
        grow_tree(ids, {}, {})


@pytest.mark.parametrize("cases", [1, 3, 5, 500])
def test_weights_add_up_to_one(cases):
    ids = [str(number) for number in range(cases)]
    tree = grow_tree(ids, {case: {"parity": str(int(case) % 2)} for case in ids}, {})
    assert cases * tree.case_weight + len(tree.nodes) * tree.node_weight == pytest.approx(1)


# The promise. A round's coin swaps both sides in all its cases, so all signs there are can be gone through.


def over_all_signs(rule, values):
    """The family's evidence for every outcome of the coins, (2 ** rounds,)."""
    return np.array(
        [
            measured(rule, values * np.array(signs)[:, None])[0].evidence
            for signs in itertools.product((1.0, -1.0), repeat=len(values))
        ]
    )


MIXED = np.abs(noise(5, 7, seed=3, own=0.04)) + 0.05
"""Differences that look like slowdowns with one outcome of the coins, and like speed-ups with the opposite one."""


@pytest.mark.long
def test_over_all_signs_the_mean_of_the_evidence_is_one():
    """Also where cases are dropped, and kept for a node, because of what their earlier signs were."""
    rule = family(7, range(5), range(1, 7))
    found = over_all_signs(rule, MIXED)
    assert len(set(np.round(found, 6))) > 20
    assert found.mean() == pytest.approx(1, rel=1e-9)


@pytest.mark.long
def test_mutant_a_product_of_the_members_evidence_is_no_bet(monkeypatch):
    """The signs of a node's members are one toss: multiplied, they count it as often as there are members."""
    rule = family(7, range(5), range(1, 7))

    def multiplied(medians, limit):
        return float(evidence(medians, limit)) ** 5

    monkeypatch.setattr(families, "evidence", multiplied)
    assert over_all_signs(rule, MIXED).mean() > 2


@pytest.mark.long
def test_mutant_membership_after_the_signs_is_no_bet(monkeypatch):
    """Members that are chosen because they look slower look slower together."""
    rule = family(7, range(5), range(1, 7))
    monkeypatch.setattr(
        Ratios, "of_node", lambda self, members: (np.abs(self.values[:, list(members)]), self.head_second)
    )
    assert over_all_signs(rule, np.nan_to_num(MIXED)).mean() > 2


def test_what_is_named_reaches_the_threshold_alone():
    """Forty cases, one test: 200 = E / 80, so that a case needs an evidence of 16,000 and a node of 800."""
    rule, rounds = family(40, range(20)), noise(40, 40, own=0.005, shared=0.002)
    rounds[:, 3] += 0.3
    outcome, count = measured(rule, rounds)
    assert named(rule, outcome) == (["case 3"], [])
    assert outcome.cases[3].evidence >= 80 * 200 > outcome.cases[3].evidence / 2
    assert count == least_rounds(16_000) == 16
    assert outcome.alarmed
    assert outcome.evidence >= 1 / ALPHA


def test_more_tests_need_more():
    rounds = noise(40, 40, own=0.005, shared=0.002)
    rounds[:, 3] += 0.3
    assert measured(family(40, tests=40), rounds)[1] == least_rounds(80 * 40 / ALPHA) == 22


# Nodes.


def test_a_group_is_found_with_fewer_rounds_than_a_case_needs():
    rule, rounds = family(40, range(20), range(20, 40)), noise(40, 40, own=0.01, shared=0.005)
    rounds[:, :20] += math.log1p(0.04)
    outcome = rule.look(Ratios(rounds[:13], orders(13)), NOTHING, final=True)
    assert least_rounds(16_000) == 16
    assert named(rule, outcome) == ([], [{"axis": "0"}])
    node = outcome.nodes[1]
    assert node.interval[0] < math.log1p(0.04) < node.interval[1]
    assert node.agreeing >= 15


def test_the_difference_of_a_node_is_the_median_of_its_members():
    values = np.array([[0.1, 0.2, 0.3, 0.4, 9.0], [0.0, -0.1, np.nan, 0.1, 0.2], [0.5, 0.3, 0.4, 0.1, 0.2]])
    ratios = Ratios(values, (True, False, True))
    rule = family(5)
    found = rule.look(ratios, NOTHING)
    # The second round lacks a member, so that it says nothing of the node.
    assert found.nodes[0].rounds == 2
    assert found.nodes[0].evidence == pytest.approx(evidence([0.3, 0.3], LIMITS.node))
    assert found.cases[2].rounds == 2
    assert found.cases[0].evidence == pytest.approx(evidence([0.1, 0.0, 0.5], LIMITS.case))
    weighted = sum(each.evidence for each in found.cases) / 10 + found.nodes[0].evidence / 2
    assert found.evidence == pytest.approx(weighted)


@pytest.mark.parametrize(
    "members, middle",
    [([3, 1, 2], 2), ([1, 2, 3, 9], 2), ([-9, -3, -2, -1], -2), ([-1, -0.5, 0.5, 1], 0), ([-5, 0, 0, 5], 0), ([4], 4)],
)
def test_the_typical_change_is_one_that_more_than_half_of_the_members_have(members, middle):
    drawn = np.array([members], float)
    assert families.typical(drawn).tolist() == [middle]
    assert families.typical(-drawn).tolist() == [-middle], "the coin swaps the sides of all members"


@pytest.mark.parametrize("change", [0.2, 1.4])
def test_one_changed_case_does_not_drag_a_small_group_along(change):
    """Of five members, the median of the others is what the group would have to change by."""
    rule, rounds = family(30, range(5), range(3, 9)), noise(30, 30, own=0.03, shared=0.0, seed=8)
    rounds[:, 4] += change
    outcome, _ = measured(rule, rounds)
    assert named(rule, outcome) == (["case 4"], [])


def test_a_node_that_one_member_makes_is_not_named():
    """By hand: with the changed member the median is that of two that hardly differ, always on the side of the fifth.

    All others lie on both sides of zero, each as often as not, so that no evidence is left without it.
    """
    rounds = 40
    values = np.tile([-0.3, -0.2, 0.05, 0.2, 0.3], (rounds, 1))
    values[:, 2] = 0.05
    rule = family(5)
    assert rule.look(Ratios(values, orders(rounds)), NOTHING).nodes[0].evidence > 1e6
    found = rule.look(Ratios(values, orders(rounds)), NOTHING).nodes[0]
    assert found.standing == "explained"


def test_a_larger_group_is_explained_by_the_one_in_it_that_changed():
    """Six of ten changed by 20 %: the median of the ten moves, and says nothing more."""
    rule, rounds = family(40, range(6), range(10)), noise(30, 40, own=0.01, shared=0.0, seed=5)
    rounds[:, :6] += math.log1p(0.2)
    outcome = rule.look(Ratios(rounds, orders(30)), NOTHING)
    assert named(rule, outcome)[1] == [{"axis": "0"}]
    assert outcome.nodes[2].standing == "explained"


def test_two_groups_that_changed_apart_are_both_named():
    rule, rounds = family(40, range(10), range(20, 30)), noise(30, 40, own=0.01, shared=0.0, seed=6)
    rounds[:, :10] += math.log1p(0.2)
    rounds[:, 20:30] += math.log1p(0.05)
    outcome = rule.look(Ratios(rounds, orders(30)), NOTHING)
    assert named(rule, outcome)[1] == [{"axis": "0"}, {"axis": "1"}]


# What is measured next.


def test_what_is_decided_is_no_longer_measured():
    rule, rounds = family(40), noise(30, 40, own=0.003, shared=0.002)
    rounds[:, 7] += 0.2
    seen = [rule.look(Ratios(rounds[:count], orders(count)), NOTHING).next for count in (1, 2, 3)]
    assert seen == [frozenset(range(40)), frozenset(range(40)), frozenset({7})]


def test_a_promising_node_keeps_and_takes_up_its_members():
    rule, rounds = family(40, range(10)), noise(30, 40, own=0.003, shared=0.002)
    rounds[:, :10] += math.log1p(0.025)
    outcome = rule.look(Ratios(rounds[:4], orders(4)), NOTHING)
    assert outcome.promising == (1,)
    assert {each.standing for each in outcome.cases[:10]} >= {"unchanged"}
    assert outcome.next >= frozenset(range(10))
    outcome, _ = measured(rule, rounds)
    assert named(rule, outcome) == ([], [{"axis": "0"}])


def test_a_case_that_was_cleared_stays_so_until_the_last_look():
    """Its later rounds, which a node asked for, are not looked at one by one; all of them count in the end."""
    rule, rounds = family(40, range(10)), noise(8, 40, own=0.003, shared=0.0)
    rounds[4:, 2] += 0.2
    ratios = Ratios(rounds, orders(8))
    assert rule.look(Ratios(rounds[:4], orders(4)), NOTHING).cases[2].standing == "unchanged"
    assert rule.look(ratios, NOTHING).cases[2].standing == "unchanged"
    last = rule.look(ratios, NOTHING, final=True).cases[2]
    assert last.standing == "open"
    assert not last.excluded
    assert last.interval is not None


def test_after_the_budget_only_what_looks_slower_is_measured():
    rule, rounds = family(40), noise(30, 40, own=0.2, shared=0.0)
    rounds[:, 7] = 0.9 + 0.01 * rounds[:, 7]
    ratios = Ratios(rounds[:10], orders(10))
    assert len(rule.look(ratios, Spent(10, 300)).next) > 25
    assert rule.look(ratios, Spent(301, 300)).next == {7}
    assert not rule.look(ratios, Spent(601, 300)).open


def test_unchanged_is_said_only_of_what_excludes_its_limit():
    rule = family(6)
    values = np.zeros((4, 6))
    values[:, 5] = [0.3, -0.3, 0.2, -0.2]
    found = rule.look(Ratios(values, orders(4)), Spent(601, 300))
    assert [each.standing for each in found.cases] == [*["unchanged"] * 5, "open"]
    assert not found.cases[5].excluded
    # One order alone says as much of the order as of the code.
    one_way = rule.look(Ratios(values, (True,) * 4), NOTHING)
    assert {each.standing for each in one_way.cases} == {"open"}


def test_a_faster_case_is_improved_and_never_named():
    rule, rounds = family(6), noise(20, 6, own=0.003, shared=0.0)
    rounds[:, 2] -= 0.3
    outcome, count = measured(rule, rounds)
    assert [each.standing for each in outcome.cases].index("improved") == 2
    assert not outcome.alarmed
    assert count == 6


@pytest.mark.parametrize("rounds", [0, 1])
def test_few_rounds_decide_nothing(rounds):
    found = family(6).look(Ratios(noise(rounds, 6), orders(rounds)), NOTHING)
    assert found.open
    assert not found.alarmed
    assert found.next == frozenset(range(6))


def test_a_slowdown_below_the_limit_does_not_fail():
    rule, rounds = family(10), noise(60, 10, own=0.002, shared=0.0)
    rounds[:, 4] += math.log1p(0.03)
    outcome, _ = measured(rule, rounds, keep=True)
    assert outcome.cases[4].standing == "unchanged"
    assert not outcome.alarmed


@pytest.mark.long
def test_unchanged_families_rarely_alarm():
    """Sixty simulated tables whose cases share half of their noise with the process: at 0.5 %, one alarms in four."""
    tables, rounds, cases, groups = 60, 12, 40, (range(40), range(20), range(10, 30), range(5))
    values = np.stack([noise(rounds, cases, seed=seed, shared=0.03) for seed in range(tables)], axis=1)
    own = Coin(LIMITS.case, (tables, cases))
    shared = [Coin(LIMITS.node, (tables,)) for _ in groups]
    most = np.zeros(tables)
    for row in values:
        own.toss(row)
        for coin, group in zip(shared, groups, strict=True):
            coin.toss(families.typical(row[:, list(group)]))
        found = own.evidence.mean(axis=1) / 2 + np.mean([coin.evidence for coin in shared], axis=0) / 2
        most = np.maximum(most, found)
    assert (most >= 1 / ALPHA).sum() <= 1
    assert most.max() > 1.5


def test_a_copy_with_other_limits_judges_by_them():
    rule = family(10)
    rounds = noise(40, 10, own=0.002, shared=0.0)
    rounds[:, 4] += math.log1p(0.03)
    strict = replace(rule, limits=Limits(math.log1p(0.01), math.log1p(0.01)))
    assert named(strict, measured(strict, rounds)[0]) == (["case 4"], [])
