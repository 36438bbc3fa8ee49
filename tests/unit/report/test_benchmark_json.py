"""A run as pytest-benchmark's JSON: pytest-benchmark itself is the reference for the statistics, and reads the file."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats

from pytest_perfdl.model.record import Case
from pytest_perfdl.report.benchmark_json import to_benchmark_json
from pytest_perfdl.results.verdict import CaseVerdict
from pytest_perfdl.stats.summaries import summarize
from unit.report import runs

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30)
COLUMNS = "--columns=min,max,mean,stddev,median,iqr,outliers,ops,rounds,iterations"
PARAMETERS = {runs.GPT: {"dtype": "bf16", "shape": (2, 3), "scale": float("nan")}}


@given(TIMES)
@example([2.0])
@example([1.0, 1.0, 1.0])
@example([1.0, 2.0, 3.0, 4.0, 100.0])
@example([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0])
def test_statistics_are_those_of_pytest_benchmark(data):
    stats = Stats()
    for value in data:
        stats.update(value)
    assert summarize(data) == {**stats.as_dict(), "data": data}


def test_every_field_that_pytest_benchmark_writes_is_there():
    data = to_benchmark_json(runs.run(runs.result()), PARAMETERS)
    (benchmark,) = data["benchmarks"]

    assert data.keys() == {"machine_info", "commit_info", "benchmarks", "datetime", "version"}
    assert data["datetime"] == "2026-05-09T14:03:11+00:00"
    assert data["machine_info"]["cpu"]["brand_raw"] == "AMD EPYC 9V74"
    assert data["commit_info"]["id"] == "77aa01c8e2f1" + "0" * 28
    named = ("group", "name", "fullname", "params", "param", "extra_info", "options", "stats")
    assert benchmark.keys() == {*named}
    assert benchmark["stats"].keys() == {*Stats.fields, "data", "iterations"}
    assert (benchmark["name"], benchmark["fullname"]) == ("test_train_step[bf16]", runs.GPT)
    assert (benchmark["param"], benchmark["params"]) == ("bf16", {"dtype": "bf16", "shape": "(2, 3)", "scale": "nan"})
    assert benchmark["stats"]["iterations"] == 20
    assert benchmark["extra_info"]["verdict"] == "regressed"


def test_a_round_is_a_process():
    record = runs.record(runs.GPT, repeats=3)
    unpaired = runs.result("unchanged", metrics=[runs.quiet()], new=record)
    paired = runs.result("unchanged", metrics=[runs.quiet(pairs=((4e6, 5e6), (4e6, 7e6)))], new=record)
    data = [to_benchmark_json(runs.run(one), {})["benchmarks"][0]["stats"]["data"] for one in (unpaired, paired)]
    assert data == [[value / 1e9 for value in record.metrics()["step_time"].values], [0.005, 0.007]]


def test_each_call_is_a_benchmark_and_tests_without_times_are_left_out():
    record = runs.record(runs.GPT, call="forward")
    named = runs.result("unchanged", metrics=[runs.quiet("forward.step_time"), runs.counted("ops")], new=record)
    (benchmark,) = to_benchmark_json(runs.run(named, runs.result("unmeasured")), {})["benchmarks"]

    assert benchmark["fullname"] == f"{runs.GPT}.forward"
    assert benchmark["extra_info"].keys() == {"verdict", "step_time"}
    assert (benchmark["param"], benchmark["params"]) == (None, None)


def test_each_case_of_a_table_is_a_benchmark():
    """A case that was compared has the time of its rounds, any other one those of the processes that recorded it."""
    record = runs.record(runs.GPT)
    times = (600.0,) * record.repeats
    kept = tuple(Case(f"op=add,n={number}", times, 8, 1, 0) for number in (1, 2))
    record = replace(record, calls=(replace(record.calls[0], series={}, cases=kept),))
    result = runs.result("unchanged", metrics=[runs.timed("case_time")], new=record)
    told = CaseVerdict("op=add,n=1", "unchanged", 0.01, time_ns=500.0, rates={"flops_per_s": 2e9})
    result = replace(result, judgement=replace(result.judgement, cases=(told,)))
    first, second = to_benchmark_json(runs.run(result), PARAMETERS)["benchmarks"]

    assert first["fullname"] == f"{runs.GPT}[op=add,n=1]"
    assert first["name"] == "test_train_step[bf16][op=add,n=1]"
    assert (first["param"], first["params"]["op"], first["params"]["dtype"]) == ("op=add,n=1", "add", "bf16")
    assert first["extra_info"] == {"verdict": "unchanged", "flops_per_s": 2e9}
    assert first["stats"]["data"] == pytest.approx([5e-7])
    assert first["stats"]["iterations"] == 8 * record.plan.steps
    assert second["extra_info"] == {}
    assert second["stats"]["data"] == pytest.approx([6e-7] * record.repeats)


def test_a_case_that_is_a_test_has_its_own_name_and_arguments():
    record = runs.record("tests/test_speed.py::benchmarks")
    times = (600.0,) * record.repeats
    ids = ("TestSort::test_words[a::b-100]", "test_plain")
    kept = tuple(Case(name, times, 8, 1, 0, definition="0123456789abcdef") for name in ids)
    record = replace(record, calls=(replace(record.calls[0], series={}, cases=kept),))
    result = runs.result("unchanged", metrics=[runs.timed("case_time")], new=record)
    result = replace(result, id="tests/test_speed.py::benchmarks")
    arguments = {"tests/test_speed.py::TestSort::test_words[a::b-100]": {"word": "a::b", "n": 100}}
    first, second = to_benchmark_json(runs.run(result), arguments)["benchmarks"]

    assert first["fullname"] == "tests/test_speed.py::TestSort::test_words[a::b-100]"
    assert (first["name"], first["param"]) == ("test_words[a::b-100]", "a::b-100")
    assert first["params"] == {"word": "a::b", "n": 100}
    assert (second["fullname"], second["param"], second["params"]) == ("tests/test_speed.py::test_plain", None, None)


@pytest.mark.long
def test_pytest_benchmark_compares_the_file(tmp_path):
    results = [one for one in runs.each_verdict() if one.new is not None]
    data = to_benchmark_json(runs.run(*results), {one.id: PARAMETERS[runs.GPT] for one in results})
    for name in ("before", "after"):
        (tmp_path / f"{name}.json").write_text(json.dumps(data, allow_nan=False))
    reads = (Path(sys.executable).parent / "pytest-benchmark", "compare", "before.json", "after.json")
    for option in ("--group-by=param:dtype,func", "--group-by=fullname", "--between=mean,ops"):
        columns = [] if "between" in option else [COLUMNS]
        told = subprocess.run(
            [*reads, option, *columns, "--csv=out.csv"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr
        assert "test_train_step[bf16]" in told.stdout
        assert not re.search("Failed to load|Error", told.stderr)
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert len(rows) >= len(data["benchmarks"]) > 1
