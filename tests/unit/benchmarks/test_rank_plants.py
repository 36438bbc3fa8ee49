"""The planted jobs of two ranks: each changes the source in one place, and only its own rank and cause are right."""

import ast
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "ranks"


def module(name, path):
    # Not by its name: examples/ have a module of plants, too.
    spec = importlib.util.spec_from_file_location(name, path)
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def plants():
    return module("rank_plants", FOLDER / "plants.py")


@pytest.fixture(scope="module")
def runner(plants):
    known = sys.modules.get("plants")
    sys.modules["plants"] = plants
    try:
        yield module("rank_plants_run", FOLDER / "plants_run.py")
    finally:
        if known is None:
            del sys.modules["plants"]
        else:
            sys.modules["plants"] = known


def test_there_are_eight_of_each_kind_and_twenty_without_a_change(plants):
    assert [len(jobs) for jobs in plants.KINDS.values()] == [8] * 5
    jobs = [*plants.PLANTS, *plants.UNCHANGED]
    assert len({job.name for job in jobs}) == len(jobs) == 60
    ranks = [job.rank for job in plants.PLANTS]
    assert (ranks.count(0), ranks.count(1), ranks.count(None)) == (12, 12, 16)


def test_a_plant_changes_one_file_of_the_source(plants):
    for plant in plants.PLANTS:
        before, after = plant.files(planted=False), plant.files(planted=True)
        (changed,) = [path for path in before if before[path] != after[path]]
        assert changed.startswith("src/training/"), plant.name
        assert changed.endswith(plant.edits[0][0]), plant.name
        for path, text in after.items():
            if path.endswith(".py"):
                ast.parse(text)
    assert all(job.files(planted=True) == job.files(planted=False) for job in plants.UNCHANGED)


def test_an_uneven_split_loses_no_row(plants):
    for plant in plants.KINDS["uneven split"]:
        names = {"ROWS": plant.sizes.rows}
        ((_, _, changed),) = plant.edits
        exec(f"def share(rank, ranks):\n{changed}", names)
        shares = [range(plant.sizes.rows)[names["share"](rank, 2)] for rank in (0, 1)]
        assert sorted((*shares[0], *shares[1])) == list(range(plant.sizes.rows))
        assert len(shares[plant.rank]) >= 2 * len(shares[1 - plant.rank])


def test_an_edit_that_does_not_fit_is_an_error(plants):
    plant = plants.Plant("computes more", "nowhere", (("net.py", "no such line", ""),), ())
    with pytest.raises(ValueError, match=r"computes more/nowhere: occurs 0 times in net"):
        plant.files(planted=True)


@pytest.mark.parametrize(
    ("kind", "cause", "right"),
    [
        ("loads slowly", {"name": "input", "rank": 0}, (True, True)),
        ("loads slowly", {"name": "input", "rank": 1}, (False, True)),
        ("loads slowly", {"name": "communication", "rank": 0}, (True, False)),
        ("loads slowly", {"name": "input"}, (False, True)),
        ("small buckets", {"name": "communication", "rank": None}, (True, True)),
        ("small buckets", {"name": "communication", "rank": 1}, (False, True)),
        ("loads slowly", None, (False, False)),
    ],
)
def test_the_first_cause_is_right_by_rank_and_by_name(plants, kind, cause, right):
    assert plants.KINDS[kind][0].is_named(cause) == right


def entry(verdict, causes):
    metrics = {"step_time": {"effect": 0.25, "ci95": [0.2, 0.3], "rounds": 9}}
    return {"verdict": verdict, "metrics": metrics, "blame": causes, "integrity": [{"code": "oversubscribed"}]}


def test_the_table_counts_what_the_run_files_say(plants, runner, tmp_path):
    first, second = plants.KINDS["loads slowly"][:2]
    right = runner.outcome_of(first, entry("regressed", [{"name": "input", "rank": 0}]), 1, 60)
    wrong = runner.outcome_of(second, entry("regressed", [{"name": "input", "rank": 0}]), 1, 120)
    missed = runner.outcome_of(plants.KINDS["small buckets"][0], entry("inconclusive", []), 0, 60)
    calm = runner.outcome_of(plants.UNCHANGED[0], entry("unchanged", []), 0, 30)
    assert (right.found, wrong.found, missed.found) == (True, False, False)

    results = tmp_path / "found.jsonl"
    results.write_text("".join(json.dumps(asdict(each)) + "\n" for each in (wrong, right, missed, calm, right)))
    rows = runner.table(runner.read(results)).splitlines()[2:]

    assert rows[0].startswith("| loads slowly | 2 | 2 | 1 | 2 | 1 | +25% to +25% | 9 to 9 | 3 |")
    assert rows[1].startswith("| small buckets | 1 | 0 | 0 | 0 | 0 |")
    assert rows[2].startswith("| all | 3 | 2 | 1 | 2 | 1 |")
    assert rows[3].startswith("| unchanged | 1 | 0 |  |  |  |")
    assert len(rows) == 4
