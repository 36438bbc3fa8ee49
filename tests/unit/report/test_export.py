"""A run as OpenMetrics text and as CSV, and the numbers that both have."""

import csv
import io
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_perfdl.model.metrics import METRICS
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report.csv import COLUMNS, to_csv
from pytest_perfdl.report.openmetrics import to_openmetrics
from pytest_perfdl.results.numbers import base_unit, numbers, safe_name, with_unit
from unit.report import runs
from unit.report.openmetrics_text import parsed

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


# OpenMetrics


def test_a_metric_is_a_gauge_in_base_units_for_either_side():
    families = parsed(to_openmetrics(one(runs.timed())))
    step_time = families["perfdl_step_time_seconds"]
    labels = (("test", runs.GPT), ("machine", runs.KEY.slug))
    assert step_time.about["UNIT"] == "seconds"
    assert step_time.samples == {
        (*labels, ("side", "baseline")): 0.0412,
        (*labels, ("side", "current")): 0.04508,
    }
    changes = {
        name: families[f"perfdl_change_{name}"].samples for name in ("ratio", "ci95_low_ratio", "ci95_high_ratio")
    }
    of_metric = (*labels, ("metric", "step_time"))
    assert changes == {
        "ratio": {of_metric: pytest.approx(0.0941748, abs=1e-7)},
        "ci95_low_ratio": {of_metric: 0.089},
        "ci95_high_ratio": {of_metric: 0.099},
    }


def test_the_text_names_the_run_and_the_verdict_of_every_test():
    run = runs.run(*runs.each_verdict())
    families = parsed(to_openmetrics(run))
    assert {dict(labels)["verdict"] for labels in families["perfdl_verdict"].samples} == set(runs.REASONS)
    failing = {dict(labels)["test"] for labels, value in families["perfdl_test_fails"].samples.items() if value}
    assert failing == {result.id for result in run.results if result.fails}
    ((about, value),) = families["perfdl_run_info"].samples.items()
    assert (dict(about), value) == (
        {"machine": runs.KEY.slug, "commit": "77aa01c8e2f1" + "0" * 28, "date": run.date},
        1,
    )
    assert list(families["perfdl_run_timestamp_seconds"].samples.values()) == [1778335391]


def test_a_named_call_is_a_label_of_the_same_metric():
    families = parsed(to_openmetrics(one(runs.timed(), runs.timed("forward.step_time"))))
    calls = [dict(labels).get("call") for labels in families["perfdl_step_time_seconds"].samples]
    assert calls == [None, None, "forward", "forward"]


def test_what_no_metric_is_known_of_has_no_samples():
    text = to_openmetrics(runs.run(runs.result("unmeasured"), date="yesterday"))
    assert set(parsed(text)) == {"perfdl_run_info", "perfdl_verdict", "perfdl_test_fails"}
    odd = replace(runs.timed(), effect=float("nan"), base=None, ci95=(float("-inf"), 0.1))
    families = parsed(to_openmetrics(one(odd)))
    assert len(families["perfdl_step_time_seconds"].samples) == 1
    assert "perfdl_change_ci95_low_ratio" not in families


@pytest.mark.parametrize(
    "names",
    [
        [("loss/a", "1"), ("loss a", "1"), ("loss_a", "1")],
        [("loss", "s"), ("loss_seconds", "1"), ("loss", "1")],
        [("verdict", "1"), ("run_info", "1"), ("change", "%"), ("test_fails", "")],
        [("peak_memory_bytes", "1"), ("alloc", "B"), ("mfu_ratio", "1")],
        [("é", "1"), ("ü", "1"), ("9", "1"), ("", "B")],
        [("energy", "J"), ("energy", "kJ"), ("energy_J", "")],
    ],
    ids=["characters", "units", "ours", "ours with units", "nothing left", "one name"],
)
def test_metrics_of_the_author_never_share_a_name(names):
    tests = [
        runs.result(test=f"t.py::test_{place}", metrics=[runs.counted(name, place + 1, place + 1, unit=unit)])
        for place, (name, unit) in enumerate(names)
    ]
    families = parsed(to_openmetrics(runs.run(*tests)))
    own = [each for name, each in families.items() if name not in parsed(to_openmetrics(one(runs.timed())))]
    values = [set(each.samples.values()) for each in own]
    assert len(values) == len(names)
    assert all(len({dict(labels)["test"] for labels in each.samples}) == 1 for each in own)


def test_a_name_does_not_depend_on_the_other_metrics():
    names = ["loss", "loss (nats)", "energy"]
    alone = {
        name for each in names for name in parsed(to_openmetrics(one(runs.counted(each, unit="nat")))) if "_nat" in name
    }
    together = parsed(to_openmetrics(one(*(runs.counted(each, unit="nat") for each in names))))
    assert alone == {name for name in together if "_nat" in name} != set()
    assert "perfdl_loss_nat" in alone


def test_one_metric_in_two_units_of_time_is_one_family():
    tests = [runs.result(test=f"t.py::{unit}", metrics=[runs.counted("wait", 2, 3, unit=unit)]) for unit in ("ms", "s")]
    families = parsed(to_openmetrics(runs.run(*tests)))
    assert sorted(families["perfdl_wait_seconds"].samples.values()) == [0.002, 0.003, 2, 3]


def test_a_hostile_run_is_still_openmetrics():
    families = parsed(to_openmetrics(runs.run(runs.hostile(), runs.hostile(), *runs.each_verdict())))
    tests = {dict(labels)["test"] for labels in families["perfdl_verdict"].samples}
    assert visible(f"tests/test_x.py::test_y[{runs.HOSTILE}]") in tests


def test_tests_that_look_alike_are_one():
    tests = [runs.result(test=f"t.py::a{line_end}b") for line_end in ("\n", "\\n")]
    assert len(parsed(to_openmetrics(runs.run(*tests)))["perfdl_verdict"].samples) == 1


def test_a_number_too_large_in_base_units_is_left_out():
    families = parsed(to_openmetrics(one(runs.counted("size", 1, 1e305, unit="TiB"))))
    assert list(families["perfdl_size_bytes"].samples.values()) == [2**40]


@given(ANY_TEXT, ANY_TEXT.filter(lambda name: "." not in name), ANY_TEXT)
@example('a"b\\c\nd', "\\", '"')
@example("\ud800", "\udfff", "\ud800")
def test_any_text_comes_back_as_it_is_shown(test, metric, unit):
    result = runs.result("unmeasured", test=test, metrics=[runs.counted(metric, unit=unit)])
    families = parsed(to_openmetrics(runs.run(result)))
    assert [dict(labels)["test"] for labels in families["perfdl_verdict"].samples] == [visible(test)]
    assert [dict(labels)["metric"] for labels in families["perfdl_change_ratio"].samples] == [visible(metric)]


GOOD = '# TYPE a_seconds gauge\n# UNIT a_seconds seconds\n# HELP a_seconds Text\na_seconds{b="c"} 1.0\n# EOF\n'


@pytest.mark.parametrize(
    "broken, by",
    [
        ("# EOF\n", ""),
        ("gauge", "stateset"),
        ("# UNIT a_seconds seconds", "# UNIT a_seconds bytes"),
        ("# HELP a_seconds Text\n", ""),
        ("Text", 'A "text"'),
        ("Text", r"\x"),
        ('a_seconds{b="c"} 1.0', 'other{b="c"} 1.0'),
        ('b="c"', 'b="c'),
        ('b="c"', 'b="c",b="d"'),
        ('b="c"', r'b="\x"'),
        ("1.0", "NaN"),
        ("1.0", "1.0 1778335391"),
        ('a_seconds{b="c"} 1.0\n', 'a_seconds{b="c"} 1.0\n' * 2),
        ('a_seconds{b="c"} 1.0\n', ""),
        ("# TYPE", "\n# TYPE"),
    ],
)
def test_the_reader_refuses_what_is_no_openmetrics(broken, by):
    assert parsed(GOOD)["a_seconds"].samples == {(("b", "c"),): 1}
    assert broken in GOOD
    with pytest.raises(ValueError):
        parsed(GOOD.replace(broken, by))


# CSV


def test_a_row_for_each_test_and_metric():
    paired = runs.timed(evidence="paired", rounds=12)
    run = runs.run(runs.result(metrics=[paired, runs.counted()]), runs.result("unmeasured", test="t.py::later"))
    found = rows(run)
    assert list(found[0]) == list(COLUMNS)
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
