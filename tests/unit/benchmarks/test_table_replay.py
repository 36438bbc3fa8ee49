"""Replays of recorded rounds of tables: the evidence is the rule's, and what was planted is what is counted."""

import gzip
import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_perfdl.judge.families import grow_tree
from pytest_perfdl.model.cases import axes_of
from pytest_perfdl.stats.evidence import Coin

RUN = Path(__file__).parents[3] / "benchmarks" / "tables" / "run.py"
_spec = importlib.util.spec_from_file_location("tables_run", RUN)
run = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = run
_spec.loader.exec_module(run)

ROUNDS = 30
IDS = [f"dtype={dtype},size={size}" for dtype in ("float32", "float64") for size in range(6)]
TREE = grow_tree(IDS, {case: axes_of(case) for case in IDS}, {})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Twelve unchanged cases, with a noise of 0.5 %."""
    drawn = np.random.default_rng(7)
    sides = [1e5 * np.exp(0.005 * drawn.standard_normal((ROUNDS, len(IDS)))) for _ in range(2)]
    path = tmp_path_factory.mktemp("tables") / "recorded.json.gz"
    found = {
        "date": "2026-11-27",
        "loads": [1.0] * ROUNDS,
        "cases": IDS,
        "nodes": [{"where": dict(node.where), "members": node.members} for node in TREE.nodes],
        "head_second": [number % 2 == 0 for number in range(ROUNDS)],
        "base_ns": sides[0].tolist(),
        "head_ns": sides[1].tolist(),
    }
    path.write_bytes(gzip.compress(json.dumps(found).encode()))
    return run.Recorded.read(path)


def test_a_recording_keeps_its_tree_orders_and_ratios(recorded):
    assert recorded.tree == TREE
    assert recorded.head_second[:3] == (True, False, True)
    assert recorded.values == pytest.approx(np.log(recorded.head_ns / recorded.base_ns))
    assert dict(TREE.nodes[recorded.group].where) == {"dtype": "float64"}


def test_the_evidence_of_replays_is_that_of_the_rule_after_every_round(recorded):
    rows = recorded.rows(run.Change((1, 2), 0.1))
    drawn = [3, 3 + ROUNDS, 7, 0, 2 * ROUNDS - 1, 7]
    coin = Coin(run.LIMITS.case, (len(IDS),))
    for found, place in zip(run.Bets(rows, run.LIMITS.case).evidence(drawn), drawn, strict=True):
        sign = -1 if place >= ROUNDS else 1
        own = sign * recorded.values[place % ROUNDS]
        own[[1, 2]] += math.log(1.1)
        coin.toss(own)
        assert found == pytest.approx(coin.evidence, rel=1e-4)


def test_unchanged_tables_do_not_alarm_and_a_planted_change_is_named(recorded):
    rng = np.random.default_rng(0)
    as_was = run.Draw.of(recorded, rng, swap=False)
    assert sorted(as_was.rows) == list(range(ROUNDS))
    assert as_was.head_second == tuple(row % 2 == 0 for row in as_was.rows)
    draw = run.Draw.of(recorded, rng, swap=True)
    assert draw.head_second == tuple((row % ROUNDS % 2 == 0) != (row >= ROUNDS) for row in draw.rows)
    for each in (as_was, draw):
        assert run.replay(recorded, each, run.Change()) == run.Replayed(alarmed=False, right=0, wrong=False)
    # By hand: a twelfth of half of the weight and a threshold of 200 ask for an evidence of 4,800.
    one = run.replay(recorded, draw, run.Change((3,), 3.0))
    assert (one.alarmed, one.wrong) == (True, False)
    assert 13 <= one.right <= 15
    several = run.replay(recorded, draw, run.Change(TREE.nodes[recorded.group].members, 0.05))
    assert 0 < several.right < 15
    assert not several.wrong


@pytest.mark.long
@pytest.mark.parametrize("rule", list(run.OTHERS))
def test_other_rules_flag_what_is_far_over_them_and_only_that(recorded, rule):
    slower = run.flagged(recorded, rule, run.Change((2, 5), 1.0), np.random.default_rng(1))
    assert np.flatnonzero(slower).tolist() == [2, 5]


@pytest.mark.long
def test_the_page_says_what_every_kind_of_table_came_to(recorded):
    rows = [run.cells(kind, row) for kind, row in run.decide(recorded, 20, seed=0)]
    assert len({kind for kind, *_ in rows}) == 6
    assert len(rows) == 6 * (1 + len(run.OTHERS)) + 1
    ours = {kind: cells for kind, *cells in rows if cells[0] == "**pytest-perfdl**"}
    assert ours["unchanged"][1:5] == ["20", "0", "", "0"]
    assert ours["one case +300%"][3] == "100.0 %"
    assert ours["dtype=float64 +5.0%"][1:4] == ["1", "1", "100.0 %"]
    assert "30 rounds of 12 unchanged cases" in run.caption(recorded)
    assert math.isfinite(recorded.values.sum())
