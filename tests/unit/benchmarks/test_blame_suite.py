"""The planted changes: each exists in the models, and what they are held to is well formed."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "blame"))

import planted_change
import suite


def planted_in_models():
    """Names that the models ask for, by model."""
    found = {}
    for model in suite.MODELS:
        tree = ast.parse((planted_change.SOURCE / planted_change.PACKAGE / f"{model}.py").read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        found[model] = {call.args[0].value for call in calls if getattr(call.func, "id", "") == "planted"}
    return found


def test_every_plant_is_in_its_model_and_nothing_else_is():
    assert planted_in_models() == {
        model: {name for name, plant in suite.PLANTS.items() if plant.model == model} for model in suite.MODELS
    }


def test_as_many_and_as_different_as_was_demanded():
    plants = suite.PLANTS.values()
    assert len(suite.PLANTS) == sum(map(len, (suite.GPT, suite.CONVNET, suite.RECOMMENDER, suite.TAGGER)))
    assert len(plants) >= 26
    assert set(Counter(plant.model for plant in plants)) == set(suite.MODELS)
    assert 3 * sum(plant.changes == "duration" for plant in plants) >= len(plants)
    assert all(1 <= plant.sized <= 30 for plant in plants)


@pytest.mark.parametrize("name", suite.PLANTS)
def test_every_line_exists_and_is_that_of_the_model(name):
    plant = suite.PLANTS[name]
    if not plant.function:
        assert plant.line == ""
        assert not plant.python
        return
    path, _, function = plant.line.partition(": ")
    file, _, number = path.rstrip(")").partition("(")
    assert file == f"blamed/{plant.model}.py"
    assert function == plant.function.rpartition(".")[2]
    assert f"def {function}(" in (planted_change.SOURCE / file).read_text().splitlines()[int(number) - 1]


def test_a_function_that_is_not_there():
    with pytest.raises(KeyError, match=r"gpt\.MLP\.backward"):
        planted_change.first_line("gpt.MLP.backward")


@pytest.mark.parametrize("name, right", [
    ("aten::bmm", True),
    ("aten::_scaled_dot_product_flash -> aten::bmm", True),
    ("aten::sdpa -> aten::add, aten::bmm and 2 more", True),
    ("aten::bmm and 1 more -> aten::sdpa", True),
    ("aten::add", False),
    ("aten::sdpa -> aten::add", False),
    ("", False),
], ids=str)  # fmt: skip
def test_of_an_exchange_one_name_must_be_right(name, right):
    assert planted_change.Plant("gpt", "", "counts", 3, ("aten::bmm",)).explains(name) is right
