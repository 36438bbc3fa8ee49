"""Simulated tables: how often unchanged ones alarm, and how much of a change is found, by the rule and by others.

    python benchmarks/tables/run.py --tables 200          # unchanged tables
    python benchmarks/tables/run.py --change case:0.2     # one case 20 % slower; group:0.05 for all of one type
    python benchmarks/tables/run.py --tables 200 --evidence   # the evidence alone: every case in every round, faster

A table has 500 cases: 20 operators, 5 types, 5 sizes. A round's log ratio of a case is normal or Student noise of its
own scale (log-normal around 1 %), plus what the two processes of a round differ by in all of their cases (0.5 %), and
in all cases of a size (0.5 %). Rounds have only the cases that the rule asks for, as live. Nothing is measured alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter

import numpy as np

from pytest_perfdl.judge.families import Family, Limits, Ratios, grow_tree, name_groups, typical
from pytest_perfdl.judge.stopping_rule import ALPHA, Spent
from pytest_perfdl.model.cases import axes_of
from pytest_perfdl.stats.evidence import Coin

OPERATORS, TYPES, SIZES = 20, 5, 5
LIMITS = Limits(math.log1p(0.05), math.log1p(0.01))
OWN, SHARED, OF_SIZE = 0.01, 0.005, 0.005
ROUND_SECONDS, CASE_SECONDS, BUDGET = 1.5, 0.03, 300.0
"""What a round costs live on two cores, and each of its cases; and --perf-budget."""
MOST_ROUNDS = 60

IDS = [f"op={o},dtype={t},size={s}" for o in range(OPERATORS) for t in range(TYPES) for s in range(SIZES)]
TREE = grow_tree(IDS, {case: axes_of(case) for case in IDS}, {case: {f"aten::{axes_of(case)['op']}"} for case in IDS})
SIZE_OF = np.array([int(axes_of(case)["size"]) for case in IDS])


def changes(text: str, drawn: np.random.Generator) -> tuple[np.ndarray, set[int]]:
    """Log ratios of the cases, and the places of those that changed: `case:0.2`, `group:0.05` or empty."""
    shift, kind, _, amount = np.zeros(len(IDS)), *text.partition(":")
    if kind == "case":
        places = {int(drawn.integers(len(IDS)))}
    elif kind == "group":
        places = {place for place, case in enumerate(IDS) if axes_of(case)["dtype"] == "1"}
    else:
        return shift, set()
    shift[list(places)] = math.log1p(float(amount))
    return shift, places


def simulate(seed: int, change: str, tests: int) -> dict[str, object]:
    """One table, and what the rule says of it."""
    drawn = np.random.default_rng(seed)
    shift, changed = changes(change, drawn)
    scales = OWN * np.exp(drawn.normal(0, 0.5, len(IDS)))
    family, which = Family(TREE, LIMITS, tests), set(range(len(IDS)))
    values, second, seconds = np.empty((0, len(IDS))), [], 0.0
    first_named: dict[str, int] = {}
    alarmed = 0
    singles = None
    for number in range(1, MOST_ROUNDS + 1):
        coin = 1 if drawn.random() < 0.5 else -1
        noise = scales * drawn.standard_t(3, len(IDS)) + drawn.normal(0, SHARED)
        noise += drawn.normal(0, OF_SIZE, SIZES)[SIZE_OF]
        row = coin * noise + shift
        if number <= 3:
            singles = row[None] if singles is None else np.vstack([singles, row])
        own = np.full(len(IDS), np.nan)
        own[sorted(which)] = row[sorted(which)]
        values, second = np.vstack([values, own]), [*second, coin > 0]
        seconds += ROUND_SECONDS + CASE_SECONDS * len(which)
        outcome = family.look(Ratios(values, tuple(second)), Spent(seconds, BUDGET))
        alarmed = alarmed or number * outcome.alarmed
        for place, each in enumerate(outcome.cases):
            if each.standing == "regressed":
                first_named.setdefault("right case" if place in changed else "wrong case", number)
        for node, _ in name_groups(TREE, outcome):
            right = change.startswith("group") and dict(node.where) == {"dtype": "1"}
            first_named.setdefault("right group" if right else "wrong group", number)
        which = set(outcome.next)
        if not which:
            break
    standings = Counter(each.standing for each in outcome.cases)
    return {
        "alarmed": alarmed,
        "rounds": number,
        "seconds": round(seconds),
        "named": first_named,
        "unchanged": standings["unchanged"],
        "others": others(singles),
    }


def most_evidence(seed: int, rounds: int = 16) -> float:
    """The most that the weighted mean of an unchanged table's evidence is in so many rounds of all of its cases."""
    drawn = np.random.default_rng(seed)
    scales = OWN * np.exp(drawn.normal(0, 0.5, len(IDS)))
    members = [list(node.members) for node in TREE.nodes]
    cases, nodes = Coin(LIMITS.case, (len(IDS),)), Coin(LIMITS.node, (len(members),))
    most = 0.0
    for _ in range(rounds):
        noise = scales * drawn.standard_t(3, len(IDS)) + drawn.normal(0, SHARED)
        noise += drawn.normal(0, OF_SIZE, SIZES)[SIZE_OF]
        cases.toss(noise)
        nodes.toss(np.array([float(typical(noise[None, places])[0]) for places in members]))
        mean = TREE.case_weight * cases.evidence.sum() + TREE.node_weight * nodes.evidence.sum()
        most = max(most, float(mean))
    return most


def others(three: np.ndarray) -> dict[str, bool]:
    """What other rules say of one round, or of three: whether they alarm."""
    from scipy.stats import false_discovery_control, ttest_1samp

    ratios = np.expm1(three[0])
    p = ttest_1samp(three, 0, alternative="greater").pvalue
    return {
        "over 20 % in one round": bool((ratios > 0.2).any()),
        "over 5 % in one round": bool((ratios > 0.05).any()),
        "t-tests of three rounds, Benjamini-Hochberg at 5 %": bool((false_discovery_control(p) < 0.05).any()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=50, help="tables (default: 50)")
    parser.add_argument("--change", default="", help="case:0.2 or group:0.05; by default nothing changed")
    parser.add_argument("--tests", type=int, default=1, help="tests in the run (default: 1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evidence", action="store_true", help="only the evidence of unchanged tables")
    arguments = parser.parse_args()
    if arguments.evidence:
        most = [most_evidence(arguments.seed + number) for number in range(arguments.tables)]
        alarms = sum(each >= arguments.tests / ALPHA for each in most)
        print(f"{len(most)} unchanged tables: {alarms} alarmed, largest evidence {max(most):.1f}")
        return
    found = []
    for number in range(arguments.tables):
        found.append(simulate(arguments.seed + number, arguments.change, arguments.tests))
        print(json.dumps(found[-1]), flush=True)
    names = Counter(name for each in found for name in each["named"])
    rounds = {
        name: float(np.median([each["named"][name] for each in found if name in each["named"]])) for name in names
    }
    rules = Counter(rule for each in found for rule, alarms in each["others"].items() if alarms)
    print(
        f"{len(found)} tables {arguments.change or 'unchanged'}: alarmed {sum(bool(e['alarmed']) for e in found)}, "
        f"named {dict(names)} after {rounds} rounds; median rounds {np.median([e['rounds'] for e in found]):g}, "
        f"seconds {np.median([e['seconds'] for e in found]):g}, unchanged cases "
        f"{np.mean([e['unchanged'] for e in found]):.1f}; other rules alarm: {dict(rules)}"
    )


if __name__ == "__main__":
    main()
