"""A run as CSV, and its numbers for other programs."""

import csv
import io
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_perfdl.model.metrics import METRICS
from pytest_perfdl.report.exports import COLUMNS, properties, to_csv, to_parquet
from pytest_perfdl.results.numbers import base_unit, numbers, safe_name, with_unit
from pytest_perfdl.results.verdict import CaseVerdict
from unit.report import runs

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)


def one(*metrics, verdict="regressed", **rest):
    return runs.run(runs.result(verdict, metrics=metrics, **rest))


def rows(run):
    return list(csv.DictReader(io.StringIO(to_csv(run)), strict=True))


# Numbers and names


@pytest.mark.parametrize(
    "unit, value, word, converted",
    [
        ("ns", 30_300_000, "seconds", 0.0303),
        ("ms", 45, "seconds", 0.045),
        ("s", 2, "seconds", 2),
        ("B", 1536, "bytes", 1536),
        ("GiB", 1, "bytes", 2**30),
        ("B/s", 7, "bytes_per_second", 7),
        ("%", 62.5, "ratio", 0.625),
        ("1", 3, "", 3),
        ("", 3, "", 3),
        ("flop", 9, "flops", 9),
        ("flop/s", 9, "flops_per_second", 9),
        ("items/s", 9, "items_per_second", 9),
        ("J/token", 9, "J_per_token", 9),
        ("°C", 9, "C", 9),
        ("€", 9, "", 9),
    ],
)
def test_base_units(unit, value, word, converted):
    assert base_unit(unit).word == word
    assert base_unit(unit).convert(value) == converted


def test_names_of_ours_stay_and_say_no_word_twice():
    assert all(safe_name(name) == name for name in METRICS)
    named = {name: with_unit(name, base_unit(each.unit)) for name, each in METRICS.items()}
    assert named["peak_memory"] == "peak_memory_bytes"
    assert named["alloc_bytes"] == "alloc_bytes"
    assert named["achieved_flops"] == "achieved_flops_per_second"
    assert named["mfu"] == "mfu_ratio"
    assert len(set(named.values())) == len(METRICS)


@given(st.lists(ANY_TEXT, min_size=2, unique=True))
@example(["loss/a", "loss a", "loss_a", safe_name("loss/a"), "", "_", "é", "ü", "x" * 60, "x" * 61])
def test_safe_names_are_distinct(texts):
    names = [safe_name(text) for text in texts]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"\w{1,67}", name, re.ASCII) for name in names)


def test_safe_ids_tell_tests_of_two_files_apart():
    ids = [f"tests/{name}.py::test_step[bf16-{size}]" for name in "ab" for size in ("1/2", "1 2")]
    safe = [runs.result(test=each).safe_id for each in ids]
    assert all(re.fullmatch(r"test_step_bf16_1_2_[0-9a-f]{6}", each) for each in safe)
    assert len(set(safe)) == 4
    assert safe == [runs.result("unchanged", test=each).safe_id for each in ids]


def test_numbers_of_a_metric_leave_out_what_is_not_known():
    assert numbers(runs.timed()) == {
        "baseline_seconds": 0.0412,
        "current_seconds": 0.04508,
        "change_ratio": pytest.approx(0.0941748, abs=1e-7),
        "change_ci95_low_ratio": 0.089,
        "change_ci95_high_ratio": 0.099,
    }
    assert numbers(runs.counted(base=None)) == {"current": 1701}
    odd = replace(runs.timed(), effect=float("nan"), base=float("inf"), ci95=None)
    assert numbers(odd) == {"current_seconds": 0.04508}


def test_numbers_of_a_test_are_those_of_its_step():
    result = runs.result(
        metrics=[
            runs.timed("forward.step_time"),
            runs.counted("my call.loss (nats)", unit="nat"),
            runs.timed("kernel gemm", of_step=False),
        ]
    )
    found = result.numbers
    assert found["forward.step_time.current_seconds"] == 0.04508
    assert [name for name in found if re.fullmatch(r"my_call_\w{6}\.loss_nats_4ff239\.current_nat", name)]
    assert not [name for name in found if "gemm" in name]
    assert (result.verdict, result.metrics) == ("regressed", result.judgement.metrics)


# CSV


def test_a_row_for_each_test_and_metric():
    paired = runs.timed(evidence="paired", rounds=12)
    run = runs.run(runs.result(metrics=[paired, runs.counted()]), runs.result("unmeasured", test="t.py::later"))
    found = rows(run)
    assert list(found[0]) == [column.title for column in COLUMNS]
    assert [(row["test"], row["metric"]) for row in found] == [
        (runs.GPT, "step_time"),
        (runs.GPT, "ops"),
        ("t.py::later", ""),
    ]
    assert found[0] == {
        "test": runs.GPT,
        "metric": "step_time",
        "kind": "timed",
        "unit": "ns",
        "better": "lower",
        "baseline": "41200000",
        "current": "45080000",
        "change": repr(45_080_000 / 41_200_000 - 1),
        "change_ci95_low": "0.089",
        "change_ci95_high": "0.099",
        "limit": "3%",
        "verdict": "regressed",
        "test_verdict": "regressed",
        "evidence": "paired",
        "rounds": "12",
        "machine_id": runs.KEY.slug,
        "commit": "77aa01c8e2f1" + "0" * 28,
        "date": "2026-05-09T14:03:11Z",
        "waiver": "",
        **dict.fromkeys(("items_per_s", "flops_per_s", "bytes_per_s", "roofline"), ""),
    }
    assert [found[1][name] for name in ("change_ci95_low", "limit", "evidence", "rounds")] == [""] * 4
    assert (found[2]["verdict"], found[2]["test_verdict"]) == ("", "unmeasured")


def test_no_cell_is_a_formula_or_breaks_a_line():
    names = ["=1+1", "@x", "-a", "+b", 'a,b"c', "a\nb", "a\r"]
    found = rows(one(*(runs.counted(name, 10, 9) for name in names)))
    assert [row["metric"] for row in found] == ["'=1+1", "'@x", "'-a", "'+b", 'a,b"c', r"a\nb", r"a\r"]
    assert {row["change"] for row in found} == {"-0.09999999999999998"}
    assert len(to_csv(runs.run(runs.hostile())).splitlines()) == 3


def test_numbers_that_csv_cannot_hold_are_empty():
    (row,) = rows(one(replace(runs.timed(), effect=float("nan"), base=None, ci95=None)))
    assert [row[name] for name in ("baseline", "change", "change_ci95_low")] == [""] * 3


def table():
    """A test with a table, of which one case is a metric, too."""
    summary = runs.timed("case_time", limit="5%", verdict=None)
    worst = runs.timed("case op=add,n=1", base=1000.0, new=1300.0)
    slow, same, new = (
        CaseVerdict("op=add,n=1", "regressed", 0.3, (0.2, 0.4), 1001.0, 1302.0, rounds=9, rates={"flops_per_s": 2e9}),
        CaseVerdict("op=add,n=2", "unchanged", 0.01, (-0.02, 0.03), 1000.0, 1010.0, rounds=3, rates={"roofline": 0.5}),
        CaseVerdict("op=add,n=3", "new", time_ns=500.0),
    )
    result = runs.result("regressed", metrics=[summary, worst])
    return replace(result, judgement=replace(result.judgement, cases=(slow, same, new)))


def test_every_case_of_a_table_has_one_row():
    run = runs.run(table())
    found = {row["metric"]: row for row in rows(run)}
    assert list(found) == ["case_time", "case op=add,n=1", "case op=add,n=2", "case op=add,n=3"]
    assert len(rows(run)) == 4
    assert found["case op=add,n=1"]["current"] == "1300", "as the metric of the test has it"
    same = found["case op=add,n=2"]
    shown = (
        "baseline",
        "current",
        "unit",
        "change",
        "change_ci95_low",
        "change_ci95_high",
        "limit",
        "verdict",
        "rounds",
    )
    assert [same[name] for name in shown] == ["1000", "1010", "ns", "0.01", "-0.02", "0.03", "5%", "unchanged", "3"]
    assert [found["case op=add,n=1"]["flops_per_s"], same["roofline"], same["flops_per_s"]] == ["2000000000", "0.5", ""]
    new = found["case op=add,n=3"]
    assert [new[name] for name in ("baseline", "current", "verdict", "evidence")] == ["", "500", "new", ""]


def test_parquet_has_the_rows_of_csv():
    parquet = pytest.importorskip("pyarrow.parquet")
    read = parquet.read_table(io.BytesIO(to_parquet(runs.run(table())))).to_pylist()
    assert [row["metric"] for row in read] == [row["metric"] for row in rows(runs.run(table()))]
    assert [row["roofline"] for row in read] == [None, None, 0.5, None]


def test_junit_properties_have_every_case():
    result = table()
    found = dict(properties(result, runs.run(result)))
    assert found["perf.case op=add,n=1.change_ratio"] == pytest.approx(0.3)
    assert found["perf.case op=add,n=2.verdict"] == "unchanged"
    assert found["perf.case op=add,n=2.current_seconds"] == pytest.approx(1.01e-6)
    assert found["perf.case op=add,n=3.current_seconds"] == pytest.approx(5e-7)
    assert "perf.case op=add,n=3.change_ratio" not in found
