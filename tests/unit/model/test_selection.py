"""The grammar of selections; what they mean in a trace and in a graph is tested there."""

from types import SimpleNamespace

import pytest

from pytest_perfdl.model.errors import SelectionError
from pytest_perfdl.model.selection import HELP, parse


def test_conditions_are_joined_by_commas_or_given_one_by_one():
    assert parse(["step=3,stream=7", "kind=copy"]) == parse(["kind=copy", "step=3", "stream=7"])
    assert parse([]) == parse(())


def test_a_comma_within_a_value_stays():
    (pattern,) = parse(["shapes=[4, 4],name~gemm"]).patterns["shapes"]
    assert pattern.search("[4, 4]")
    (pattern,) = parse([r"name~a{1,2}$"]).patterns["name"]
    assert pattern.search("aa")
    assert not pattern.search("b")


@pytest.mark.parametrize(
    ("text", "numbers"), [("step=3", {3}), ("step=3-5", {3, 4, 5}), ("step=3,step=5", {3, 5}), ("name~a", range(9))]
)
def test_steps(text, numbers):
    selection = parse([text])
    assert {number for number in range(9) if selection.has_step(number)} == set(numbers)


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("name=aten::mm", ["aten::mm"], ["aten::mm_", "aten::addmm", "Aten::mm"]),
        ("name=aten::*norm?", ["aten::batch_norm_", "aten::norms"], ["aten::norm"]),
        ("name=a[b]*", ["a[b]", "a[b]c"], ["ab"]),
        ("name~GEMM", ["cublas_gemm_1", "Gemm"], ["aten::mm"]),
        ("name~gemm,name~128", ["gemm_128"], ["gemm_64", "128"]),
        ("module=Net.blocks.2", ["Net.blocks.2", "Net.blocks.2.mlp"], ["Net.blocks.20", "Net.blocks"]),
        ("module=Net.*.mlp", ["Net.blocks.2.mlp", "Net.3.mlp.fc"], ["Net.mlp"]),
        ("module~blocks", ["Net.blocks.2"], ["Net.fc"]),
    ],
)
def test_texts(text, matching, others):
    selection, condition = parse([text]), text.partition("=")[0].partition("~")[0]
    assert [selection.matches(condition, each) for each in (*matching, *others)] == [True] * len(matching) + [
        False
    ] * len(others)


def test_rows_of_a_table_match_by_the_columns_that_it_has():
    table = [SimpleNamespace(name="gemm", module="Net.fc"), SimpleNamespace(name="relu", module="Net.act")]
    assert parse(["module~fc"]).rows(table) == (table[0],)
    assert parse(["line~train", "name~e"]).rows(table) == tuple(table)
    assert parse(["name~g,module~act"]).rows(table) == ()
    # A table by name has no modules; in one by module what is outside of all has none.
    by_name = [SimpleNamespace(name="gemm", module=""), SimpleNamespace(name="relu", module="")]
    assert parse(["module~fc"]).rows(by_name) == tuple(by_name)
    outside = SimpleNamespace(name="add", module="")
    assert parse(["module~fc"]).rows([*table, outside]) == (table[0],)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step=x", "'step=x': step must be a number or a range such as 3-5"),
        ("step~3", "'step~3' is not a valid selection"),
        ("rank=one", "'rank=one': rank must be a number such as 7"),
        ("kind=fish", "unknown kind 'fish'; valid: operator, call, "),
        ("phase=lunch", "unknown phase 'lunch'; valid: forward, backward, optimizer"),
        ("name~(", "'(' is not a regular expression"),
        ("name", "'name' is not a valid selection: expected one of step=, "),
        ("name=", "'name=' is not a valid selection"),
        ("", "'' is not a valid selection"),
        ("color=red,step=3", "'color=red' is not a valid selection"),
    ],
)
def test_what_is_not_understood(text, message):
    with pytest.raises(SelectionError) as refusal:
        parse([text])
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_example_of_the_help_is_understood():
    examples = HELP.partition("; ")[0].split(", ")
    assert len(examples) > 10
    for example in examples:
        assert parse([example]) != parse([])
