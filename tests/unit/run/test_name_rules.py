"""The hook for a project's own name rules, asked through pytest's own plugin manager."""

from types import SimpleNamespace

import pytest

from pytest_perfdl import hookspecs
from pytest_perfdl.diff.matching.names import NO_RULES, normalized
from pytest_perfdl.run.context import name_rules


def config(*answers):
    """A session whose plugins answer so, the last one registered first."""
    manager = pytest.PytestPluginManager()
    manager.add_hookspecs(hookspecs)
    asked = []

    def plugin(answer):
        def pytest_perfdl_name_rules():
            asked.append(answer)
            return answer

        return SimpleNamespace(pytest_perfdl_name_rules=pytest_perfdl_name_rules)

    for answer in answers:
        manager.register(plugin(answer))
    return SimpleNamespace(stash=pytest.Stash(), hook=manager.hook), asked


def test_nobody_answers():
    one, _ = config()
    assert name_rules(one) == NO_RULES


def test_all_answers_are_joined_and_asked_for_once():
    one, asked = config([("a", "b")], None, [("x", "a")])
    assert normalized("x", name_rules(one)) == "b"
    assert name_rules(one) is name_rules(one)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "answer, message",
    [
        (
            [("x(", "")],
            (
                "pytest_perfdl_name_rules: 'x(' -> '' is not a valid rewrite rule: missing ), unterminated subpattern "
                "at position 1"
            ),
        ),
        (5, "pytest_perfdl_name_rules: 5 is not a list of (pattern, replacement) pairs"),
        ("ab", "pytest_perfdl_name_rules: 'ab' is not a list of (pattern, replacement) pairs"),
        ({"a": "b"}, "pytest_perfdl_name_rules: 'a' is not a (pattern, replacement) pair"),
    ],
    ids=["pattern", "number", "text", "mapping"],
)
def test_a_rule_that_is_none_ends_the_session_with_one_line(answer, message):
    one, _ = config(answer)
    with pytest.raises(pytest.UsageError) as caught:
        name_rules(one)
    assert str(caught.value) == message
