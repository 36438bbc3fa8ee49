"""What is recorded: which rounds are wanted, in what lots, what is still missing, and what is said of the rest."""

import argparse
import json
from collections import Counter
from dataclasses import asdict
from itertools import pairwise

import pytest

from unit.benchmarks.recorded_runs import recording

import record  # isort: skip (recorded_runs makes these importable)
from lots import Jobs  # isort: skip
from recording import Cell, First, append_line, pack  # isort: skip


def options(**more):
    wanted = {
        "workload": list(record.WORKLOADS),
        "rounds": 80,
        "slowed_rounds": 60,
        "processes": 6,
        "slowed_processes": 2,
        "cell": [""],
        "share": record.SHARES,
    }
    return argparse.Namespace(**{**wanted, "seed": 1, **more})


@pytest.fixture(scope="module")
def batches():
    return record.plan(options())


class TestPlan:
    def test_cells_are_chosen_by_the_beginning_of_their_names(self):
        chosen = record.plan(options(cell=["forked, pinned", "started, free, quiet"]))
        cells = {str(task.cell) for batch in chosen for task in batch.tasks if task.cell}
        assert cells == {"forked, pinned, quiet", "forked, pinned, neighbor 30%", "started, free, quiet"}

    def test_every_round_is_wanted_once(self, batches):
        tasks = [task for batch in batches for task in batch.tasks]
        assert len(set(tasks)) == len(tasks)
        rounds = Counter((task.workload, task.cell, task.share) for task in tasks if task.kind == "round")
        assert {count for (_, _, share), count in rounds.items() if not share} == {80}
        assert {count for (_, _, share), count in rounds.items() if share} == {60}
        cells = {name: {cell for workload, cell, _ in rounds if workload == name} for name in record.WORKLOADS}
        assert {name: len(found) for name, found in cells.items()} == {"transformer": 8, "convnet": 2, "loader": 2}
        assert cells["loader"] == {Cell("forked", True, 0.0), Cell("started", False, 0.3)}
        assert Counter(task.workload for task in tasks if task.kind == "process") == dict.fromkeys(record.WORKLOADS, 12)

    def test_a_run_of_pytest_has_lots_of_one_workload_and_of_many_cells(self, batches):
        for batch in batches:
            assert len({(task.kind, task.workload) for task in batch.tasks}) == 1
            assert len(batch.tasks) <= record.ROUNDS_OF_A_LOT * record.LOTS_OF_A_RUN
        mixed = [{task.cell for task in batch.tasks} for batch in batches if batch.tasks[0].workload == "transformer"]
        assert max(map(len, mixed)) >= 5

    def test_the_order_is_that_of_the_seed(self, batches):
        assert record.plan(options()) == batches
        assert record.plan(options(seed=2)) != batches
        workloads = [batch.tasks[0].workload for batch in batches]
        assert sum(a != b for a, b in pairwise(workloads)) > len(workloads) / 3


class TestLots:
    def test_successive_rounds_of_one_kind_with_a_seed_of_their_own(self, batches):
        batch = next(batch for batch in batches if len(batch.tasks) > 20)
        lots = record.lots_of(batch.tasks, 1)
        assert sum(len(lot.numbers) for lot in lots) == len(batch.tasks)
        assert all(lot.numbers == list(range(1, len(lot.numbers) + 1)) for lot in lots)
        assert len({lot.seed for lot in lots}) == len(lots)

    def test_what_is_left_of_a_lot_keeps_its_numbers_and_seed(self):
        tasks = [record.Task("round", "loader", 0.05, number, Cell("forked", True, 0.0)) for number in range(4, 8)]
        (whole,), (left,) = record.lots_of(tasks, 1), record.lots_of(tasks[2:], 1)
        assert (whole.first, whole.numbers) == (4, [1, 2, 3, 4])
        assert (left.first, left.numbers, left.seed) == (4, [3, 4], whole.seed)

    @pytest.mark.parametrize("workload, share, plant", [
        ("transformer", 0.05, {"EVERY": 1, "EXTRA": 0.05}),
        ("loader", 0.05, {"TRANSFORM": 0.05}),
        ("convnet", 0.0, {}),
    ], ids=["step", "loader", "unchanged"])  # fmt: skip
    def test_what_makes_it_slower(self, workload, share, plant):
        (lot,) = record.lots_of([record.Task("round", workload, share, 0, Cell("started", False, 0.3))], 1)
        assert lot.plant == plant

    def test_jobs_are_read_as_they_were_written(self, tmp_path):
        lots = record.lots_of([record.Task("round", "loader", 0.1, 3, Cell("forked", True, 0.0))], 1)
        jobs = Jobs("loader", "tests/test_recorded.py::test_loader", 2, "project", "out.jsonl", lots)
        path = tmp_path / "jobs.json"
        path.write_text(json.dumps(asdict(jobs)))
        assert Jobs.read(path) == jobs


class TestLeft:
    def test_what_was_recorded_is_not_wanted_again(self):
        runs = recording(unchanged=2, slowed=1, rounds=1, firsts=1)
        done = {record.task_of(run) for run in runs}
        (number,) = [run.number for run in runs if getattr(run, "order", "") and run.share == 0.05]
        assert record.Task("round", "numbers", 0.05, number, Cell("started", False, 0.0)) in done
        assert None in done, "what comes before rounds is no task"

    def test_time_left_is_that_of_the_sort(self):
        runs = recording(unchanged=2, slowed=0, rounds=2, shares=(), firsts=1)
        round_of = record.Task("round", "numbers", 0.10, 7, Cell("started", False, 0.0))
        process = record.Task("process", "numbers", 0.10, 7)
        assert record.left([process] * 5, runs) == pytest.approx(15.0)
        # Rounds of 5 s, and of each lot of four half a second and its part of a run's 7 + 5 s before rounds.
        assert record.left([round_of] * 4, runs) == pytest.approx(20.0 + 0.5 + 12.0 / record.LOTS_OF_A_RUN)


def test_what_was_packed_counts_as_recorded(tmp_path, monkeypatch, capsys):
    """On another day, where the lines are gone."""
    lines, packed = tmp_path / "lines.jsonl", tmp_path / "packed.json.gz"
    first, second = (First("loader", number, float(number), 1.0, 1.0) for number in range(2))
    append_line(lines, first)
    asked = argparse.Namespace(out=lines, packed=packed)
    pack(record.recorded(asked), {}, packed)
    append_line(lines, second)
    assert record.recorded(asked) == [first, second]
    lines.unlink()
    assert record.recorded(asked) == [first]
