"""The projects with a planted regression: each is a repository whose bad edit is one of source and nothing else."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[3] / "benchmarks" / "report" / "plants.py"
# Not by its name: examples/ have a module of plants, too.
SPEC = importlib.util.spec_from_file_location("report_plants", PATH)
plants = sys.modules[SPEC.name] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(plants)


@pytest.fixture(params=plants.PLANTS, ids=lambda plant: plant.name)
def plant(request):
    return request.param


def git(project, *arguments):
    return subprocess.run(["git", *arguments], cwd=project, check=True, capture_output=True, text=True).stdout


def test_the_bad_edit_is_of_the_source_alone(plant, tmp_path):
    project = tmp_path / plant.name
    plants.make(plant, project)
    assert git(project, "status", "--porcelain") == ""
    plants.spoil(plant, project)
    assert git(project, "rev-list", "--count", "HEAD").strip() == ("2" if plant.message else "1")
    first = git(project, "rev-list", "--max-parents=0", "HEAD").strip()
    assert git(project, "diff", "--name-only", first).split() == [plant.edited]
    for file in project.rglob("*.py"):
        ast.parse(file.read_text())


def test_each_has_one_perf_test_that_nothing_gives_away(plant):
    (test,) = (text for name, text in plant.files.items() if name.startswith("tests/"))
    assert test.count("@pytest.mark.perf") == 1
    assert plant.edited in plant.files
    everything = "".join([*plant.files, *plant.files.values()])
    assert "environ" not in everything
    assert "plant" not in everything


def test_an_edit_that_no_longer_fits_its_model_is_refused():
    with pytest.raises(SystemExit, match="occurs 0 times instead of once: 'b'"):
        plants.replaced("a", "b", "c")
    with pytest.raises(SystemExit, match="has a plant that"):
        plants.of_example("mixer.py")
