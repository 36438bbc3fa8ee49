import json
from dataclasses import replace

import pytest

from pytest_perfdl.model import record_json
from pytest_perfdl.report.exports import properties
from pytest_perfdl.results.run import Exemplars
from pytest_perfdl.results.run_file import dump, to_json
from unit.report import runs

TEST_KEYS = {
    "ranks",
    "rank_times",
    "breakdowns",
    "cases",
    "groups",
    "id",
    "file",
    "line",
    "verdict",
    "reason",
    "fails",
    "updated",
    "caught_by",
    "growth",
    "memory",
    "metrics",
    "environment",
    "rounds",
    "blame",
    "work",
    "operators",
    "definition",
    "source_diffs",
    "suggestions",
    "curves",
    "integrity",
    "context_changes",
    "base_path",
    "against",
    "against_python",
    "base_record",
    "base_now",
    "base_repeats",
    "new_repeats",
    "seconds",
    "traces",
    "record",
}
METRIC_KEYS = {
    "of_step",
    "kind",
    "unit",
    "better",
    "base",
    "new",
    "effect",
    "ci95",
    "excluded",
    "stored",
    "limit",
    "times_over",
    "verdict",
    "evidence",
    "rounds",
    "in_every_round",
    "waiver",
    "remark",
    "reason",
    "base_values",
    "new_values",
}


def strict(data):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(dump(data), parse_constant=refuse)


def test_the_contract():
    run = runs.run(*runs.each_verdict())
    data = strict(to_json(run))
    assert {"schema", "key", "context", "tests", "counts", "date", "commit", "judged"} <= set(data)
    assert data["key"]["slug"] == runs.KEY.slug
    assert data["counts"] == dict.fromkeys(runs.REASONS, 1)
    assert len(data["tests"]) == len(run.results)
    for test in data["tests"]:
        assert set(test) == TEST_KEYS
        for metric in test["metrics"].values():
            assert set(metric) == METRIC_KEYS


def test_a_regressed_test():
    data = strict(to_json(runs.run(runs.result("regressed", blame=runs.BLAME))))["tests"][0]
    step = data["metrics"]["step_time"]
    assert (step["base"], step["new"], step["ci95"], step["limit"]) == (41_200_000, 45_080_000, [0.089, 0.099], "3%")
    assert len(step["base_values"]) == 5
    assert len(step["new_values"]) == 10
    assert data["blame"][1] == {
        "kind": "operator",
        "name": "aten::elementwise_mul",
        "call": "",
        "rank": None,
        "status": "new",
        "base_count": 0,
        "new_count": 48,
        "base_ns": 0,
        "new_ns": 610_000,
        "delta_ns": 610_000,
        "share": 0.16,
        "module": "",
        "line": "",
        "effects": {},
        "bound": "",
        "certain": True,
        "members": [],
    }
    assert data["source_diffs"] == []
    assert data["caught_by"] == ["time", "counts"]


def test_where_a_cause_is_and_what_changed_there():
    one = runs.result(blame=[runs.PLACED], source_diffs=(runs.SOURCE,))
    data = strict(to_json(runs.run(one)))["tests"][0]
    found = {name: data["blame"][0][name] for name in ("module", "line", "bound")}
    assert found == {"module": "GPT.blocks.0.mlp", "line": "train.py(12): step", "bound": "launch"}
    assert data["source_diffs"] == [
        {"file": "src/train.py", "function": "step", "text": runs.SOURCE.text, "line": 13, "called": True}
    ]


def test_times_are_integers_and_counts_keep_their_fraction():
    metrics = [runs.timed(base=1234.6, new=2345.4), runs.counted(base=1.5, new=2.5)]
    data = strict(to_json(runs.run(runs.result(metrics=metrics))))["tests"][0]["metrics"]
    assert (data["step_time"]["base"], data["step_time"]["new"]) == (1235, 2345)
    assert isinstance(data["step_time"]["base"], int)
    assert (data["ops"]["base"], data["ops"]["new"]) == (1.5, 2.5)


@pytest.mark.parametrize(
    "metrics, words",
    [
        ([runs.timed()], ["time"]),
        ([runs.timed(verdict="suspect")], ["time"]),
        ([runs.quiet(), runs.counted()], ["counts"]),
        ([runs.counted(verdict="regressed"), runs.timed()], ["time", "counts"]),
        ([runs.quiet(), runs.timed(verdict="improved"), runs.timed(verdict="inconclusive")], []),
    ],
)
def test_what_caught_it(metrics, words):
    assert to_json(runs.run(runs.result(metrics=metrics)))["tests"][0]["caught_by"] == words


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_becomes_null(odd):
    metric = runs.timed(base=odd, new=odd, effect=odd, ci95=(odd, 0.1), excluded=odd, times_over=odd)
    run = runs.run(
        runs.result(metrics=[metric], blame=[runs.cause("a", share=odd)]), context={"temperature": odd}, seconds=odd
    )
    data = strict(to_json(run))
    step = data["tests"][0]["metrics"]["step_time"]
    assert [step[name] for name in ("base", "new", "effect", "excluded", "times_over")] == [None] * 5
    assert step["ci95"] == [None, 0.1]
    assert data["tests"][0]["blame"][0]["share"] is None
    assert data["context"]["temperature"] is None


def test_the_embedded_record_can_become_a_baseline():
    one = runs.result("regressed")
    stored = strict(to_json(runs.run(one)))["tests"][0]["record"]
    again = record_json.from_json(stored)
    assert again.test == one.id
    assert again.repeats == 10
    assert record_json.to_json(again) == stored


def test_traces_name_the_files_of_the_report(tmp_path):
    both = Exemplars("", tmp_path / "a", tmp_path / "b")
    single = Exemplars("forward", None, tmp_path / "b")
    traces = to_json(runs.run(runs.result(exemplars=(both, single))))["tests"][0]["traces"]
    assert set(traces[0]) == {"call", "base", "new", "diff", "speedscope"}
    assert set(traces[1]) == {"call", "new"}
    assert traces[1]["call"] == "forward"
    assert traces[0]["diff"].startswith("traces/test_train_step-bf16-")


def test_hostile_names_survive_the_round_trip():
    run = runs.run(runs.hostile())
    data = json.loads(dump(to_json(run)))["tests"][0]
    assert data["id"] == run.results[0].id
    assert [cause["name"] for cause in data["blame"]] == [cause.name for cause in run.results[0].judgement.blame]


def test_the_file_is_the_same_each_time():
    run = runs.run(*runs.each_verdict())
    assert dump(to_json(run)) == dump(to_json(run))


def test_junit_properties():
    one = runs.result("regressed")
    found = dict(properties(one, runs.run(one)))
    assert found["perf.verdict"] == "regressed"
    assert found["perf.machine_id"] == runs.KEY.slug
    assert found["perf.report"] == "perf-report/index.html"
    assert found["perf.step_time.baseline_seconds"] == 0.0412
    assert found["perf.step_time.current_seconds"] == 0.04508
    assert found["perf.step_time.change_ratio"] == pytest.approx(0.0941748, abs=1e-7)
    assert found["perf.step_time.change_ci95_low_ratio"] == 0.089
    assert found["perf.step_time.change_ci95_high_ratio"] == 0.099
    assert (found["perf.step_time.verdict"], found["perf.step_time.limit"]) == ("regressed", "3%")
    assert found["perf.peak_memory.current_bytes"] == 2_147_483_648
    assert found["perf.ops.current"] == 1748
    assert "perf.ops.change_ci95_low_ratio" not in found
    assert all(isinstance(value, (str, int, float)) for value in found.values())


def test_junit_leaves_out_what_is_unknown():
    one = runs.result("unmeasured")
    assert [name for name, _ in properties(one, runs.run(one))] == [
        "perf.verdict",
        "perf.reason",
        "perf.machine_id",
        "perf.report",
    ]
    odd = runs.result(metrics=[replace(runs.timed(), effect=float("nan"), new=None)])
    found = dict(properties(odd, runs.run(odd)))
    assert not {"perf.step_time.change_ratio", "perf.step_time.current_seconds"} & set(found)


def test_a_curve_is_told_in_nanoseconds_with_intervals():
    data = strict(to_json(runs.run(replace(runs.result(), curves=(runs.curve(),)))))["tests"][0]
    (curve,) = data["curves"]
    assert (curve["name"], curve["axis"], curve["unit"]) == ("step_time over batch", "batch", "sample")
    assert curve["sizes"][0]["base"] == {"value": 18_000_000, "low": 17_820_000, "high": 18_180_000}
    assert [each["paired"] for each in curve["sizes"]] == [False, False, False, True]
    assert {each["size"] for each in curve["sizes"]} <= {each["size"] for each in curve["fitted"]}
    assert [each["kind"] for each in curve["figures"]] == ["overhead", "per unit", "complexity"]
    assert curve["growth"]["effect"] == {"value": 0.25, "low": 0.2, "high": 0.3}
    assert to_json(runs.run(runs.result()))["tests"][0]["curves"] == []
