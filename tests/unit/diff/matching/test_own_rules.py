"""A project's own rules for names: how they are given, and that a diff goes by them."""

from dataclasses import replace

import numpy as np
import pytest

from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.diff import diff
from pytest_perfdl.diff.matching.names import NO_RULES, normalized, rules_of
from pytest_perfdl.diff.side import Side
from pytest_perfdl.judge.blame import diff_rounds, find_causes, locate_causes
from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.model.step_part import Part
from pytest_perfdl.results.verdict import Cause
from unit.trace.chrome import kernel, launch, step, trace, x


def test_rules_apply_in_order_to_the_name_as_it_is():
    rules = rules_of([(r"_b(\d+)$", r"_build\1"), ("_build7", "")])
    assert normalized("my_gemm_b7", rules) == "my_gemm"
    assert normalized("my_gemm_b7") == "my_gemm_b7"


@pytest.mark.parametrize("pairs", [(), [], iter(())], ids=["tuple", "list", "iterator"])
def test_no_rules(pairs):
    assert rules_of(pairs) == NO_RULES


@pytest.mark.parametrize(
    "pair, message",
    [
        (("x(", ""), r"'x\(' -> '' is not a valid rewrite rule: missing \), unterminated subpattern at position 1"),
        (("x", r"\1"), r"'x' -> '\\\\1' is not a valid rewrite rule: invalid group reference 1"),
        (("x", r"\g<name>"), r"is not a valid rewrite rule: unknown group name 'name'"),
        (("x",), r"\('x',\) is not a \(pattern, replacement\) pair"),
        (("x", None), r"\('x', None\) is not a \(pattern, replacement\) pair"),
        ("xy", r"'xy' is not a \(pattern, replacement\) pair"),
        (5, r"5 is not a \(pattern, replacement\) pair"),
    ],
    ids=["pattern", "number of a group", "name of a group", "one text", "no text", "a text", "a number"],
)
def test_a_rule_that_is_none_is_one_line(pair, message):
    with pytest.raises(ValueError, match=message) as caught:
        rules_of([("a", "b"), pair])
    assert "\n" not in str(caught.value)


def side(*names):
    """Kernels of equal time, one after the other, launched by operators of their names."""
    parts = tuple(Part("kernel", name, shapes=f"[[{index + 1}]]") for index, name in enumerate(names))
    ns = np.full((len(parts), 3), 100.0)
    return Side("runs", "run", parts, ("compute",) * len(parts), ns.sum(axis=0), ns, ns, np.ones_like(ns))


def test_a_diff_goes_by_them():
    base, new = side("fast_alpha_b1", "fast_beta_b1"), side("fast_alpha_c2", "fast_beta_c2")
    rules = rules_of([(r"_[bc]\d$", "")])
    renamed = diff(base, new, rules=rules)
    assert {(change.group.by, change.group.confidence) for change in renamed.changes} == {("name", 0.95)}
    assert [(change.base_parts[0].shapes == change.new_parts[0].shapes) for change in renamed.changes] == [True, True]
    assert all(change.group.confidence < 0.95 for change in diff(base, new).changes)
    assert diff(base, base, rules=rules).coverage == 1


def rounds(before, after):
    """Two rounds of a step with one kernel, whose name and time each side has."""

    def parts(name, times):
        made = trace(
            step(0, 0, 100), x("aten::mm", 5, 10), launch(6, 1, 1), kernel(name, 20, times, 1), x("aten::a", 50, 1)
        )
        return {"call": step_parts(made)}

    return [
        Round(
            "base first", {}, {}, parts_base=parts(before[0], before[1] + i), parts_head=parts(after[0], after[1] + i)
        )
        for i in range(2)
    ]


def test_rounds_are_explained_by_them():
    made = rounds(("fast_alpha_b1", 30), ("fast_alpha_c2", 40))
    rules = rules_of([(r"_[bc]\d$", "")])
    assert [cause.name for cause in find_causes(diff_rounds(made, rules))][:1] == ["fast_alpha_c2"]
    assert [cause.name for cause in find_causes(diff_rounds(made))][:1] == ["fast_alpha_b1 -> fast_alpha_c2"]


def test_places_are_found_by_them():
    (one, _) = rounds(("fast_alpha_b1", 30), ("fast_alpha_c2", 40))
    rules = rules_of([(r"_[bc]\d$", "")])
    blamed = Cause("kernel", "fast_alpha_c2", "call", 1, 1, 30_000, 40_000, 1.0)
    line = "train.py(12): step"
    parts = {
        side: {"call": replace(found["call"], parts=tuple(replace(part, line=line) for part in found["call"].parts))}
        for side, found in (("base", one.parts_base), ("head", one.parts_head))
    }
    assert locate_causes([blamed], parts["base"], parts["head"], rules)[0].line == line
    assert locate_causes([blamed], parts["base"], parts["head"])[0].line == ""
