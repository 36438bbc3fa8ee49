"""Joining the repeats of two occasions."""

from dataclasses import replace

import pytest
from making import CONTEXT, counted, record, timed

from pytest_perfdl.baseline.text import append, dump, parse
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.record import Call, Case, CaseWork, Code, Finding, Key, MeasurementPlan, Occasion, Row


def of(*times, ops=10, rows=(), date="2026-05-01T10:00:00Z", **rest):
    made = record({"step_time": timed(*times), "ops": counted(*(ops,) * len(times))}, rows=rows, **rest)
    return replace(made, occasions=(Occasion(len(times), date, ("c" + date[6]) * 20, "d" * 40),))


def test_repeats_follow_in_order_and_keep_their_occasions():
    joined = append(of(100, 101, date="2026-05-01"), of(103, date="2026-06-01"))
    assert joined.metrics()["step_time"].values == (100, 101, 103)
    assert joined.metrics()["ops"].values == (10, 10, 10)
    assert joined.repeats == 3
    assert [occasion.date for occasion in joined.occasions] == ["2026-05-01", "2026-06-01"]
    assert joined.calls[0].profiled_ns == (1, 1, 1)
    assert parse(dump(joined)) == joined


def test_rows_are_joined_by_kind_and_name_and_absent_ones_took_no_time():
    base = of(1.0, 1.0, rows=(Row("operator", "mm", 2, (100, 102)), Row("idle", "input", 1, (7, 8))))
    new = of(1.0, rows=(Row("kernel", "mm", 3, (50,)), Row("operator", "mm", 2, (104,))))
    assert append(base, new).calls[0].rows == (
        Row("kernel", "mm", 1, (0, 0, 50)),  # 3 in one of three repeats
        Row("operator", "mm", 2, (100, 102, 104)),
        Row("idle", "input", 2 / 3, (7, 8, 0)),
    )


def test_an_account_stays_closed():
    base = of(1.0, rows=(Row("operator", "mm", 2, (100,)), Row("operator", "add", 1, (20,))))
    new = of(1.0, rows=(Row("operator", "mm", 2, (110,)), Row("operator", "mul", 1, (30,))))
    call = append(base, new).calls[0]
    assert [sum(row.ns[i] for row in call.rows) for i in range(2)] == list(call.profiled_ns) == [120, 140]


def test_labels_and_findings_are_joined():
    note = Finding("note", "load", "another load")
    base = of(1.0, modes={"page_faults": ("none",)}, integrity=(note,))
    new = of(1.0, modes={"page_faults": ("few", "none"), "clock": ("low",)}, integrity=(note,))
    joined = append(base, new)
    assert joined.modes == {"page_faults": ("none", "few"), "clock": ("low",)}
    assert joined.integrity == (note,)


def test_op_counts_are_kept_where_equal_and_both_shown_where_not():
    def with_counts(*counts):
        made = of(1.0)
        return replace(made, calls=(replace(made.calls[0], op_counts=counts, uncounted=("x",)),))

    assert append(with_counts(5, 6), with_counts(5, 6)).calls[0].op_counts == (5, 6)
    joined = append(with_counts(5, 6), with_counts(6, 5)).calls[0]
    assert (joined.op_counts, joined.uncounted) == ((5, 6, 6, 5), ("x",))


def test_a_count_stored_rounded_equals_the_same_count_measured():
    base = parse(dump(of(1.0, ops=1 / 3)))
    assert append(base, of(2.0, ops=1 / 3)).metrics()["ops"].stable


def test_an_inexact_size_may_differ_and_is_then_no_longer_stable():
    def with_peak(value):
        return record({"peak_memory": counted(value, unit="B")})

    assert append(with_peak(1000), with_peak(1001)).metrics()["peak_memory"].values == (1000, 1001)


def test_unstable_counts_are_joined():
    base, new = record({"ops": counted(1, 2)}), record({"ops": counted(3)})
    assert append(base, new).metrics()["ops"].values == (1, 2, 3)


def test_appending_twice_is_appending_in_order():
    a, b, c = of(1.0, date="2026-01-01"), of(2.0, date="2026-02-01"), of(3.0, date="2026-03-01")
    assert append(append(a, b), c) == append(a, append(b, c))


@pytest.mark.parametrize("swap", [False, True])
def test_a_utilization_that_one_recording_has_is_left_out(swap):
    share = timed(40.0, 50.0, unit="%", better="higher")
    both = record({"step_time": timed(1.0, 2.0), "mfu": share, "roofline": share})
    one = record({"step_time": timed(3.0, 4.0), "mfu": share})
    first, second = (both, one) if swap else (one, both)
    (call,) = append(first, second).calls
    assert {name: len(series.values) for name, series in call.series.items()} == {"step_time": 4, "mfu": 4}


@pytest.mark.parametrize("new, what", [
    (of(1.0, test="t/a.py::b"), "different test (baseline tests/perf"),
    (of(1.0, key=Key("gpu", {})), "different machine ID (baseline cpu-epyc-8c-1t, current gpu)"),
    (of(1.0, test_hash="other"), "different test source"),
    (of(1.0, plan=MeasurementPlan(15, 20)), "different measurement settings (baseline steps=40, current steps=20)"),
    (
        of(1.0, plan=MeasurementPlan(15, 40, loops={"": 8})),
        "different measurement settings (baseline loops=1, current loops=8)",
    ),
    (of(1.0, context={**CONTEXT, "torch": "2.14.0"}), "different context torch (baseline 2.13.0, current 2.14.0)"),
    (of(1.0, context={**CONTEXT, "driver": "2"}), "different context driver (baseline None, current 2)"),
    (of(1.0, code=Code({"a.py": "1" * 12}, {"numpy": "2"})), "different code (baseline a.py 000000000000, current "),
    (of(1.0, code=Code({}, {"numpy": "2"})), "different code (baseline a.py 000000000000, current none)"),
    (of(1.0, code=Code({"a.py": "0" * 12}, {"numpy": "3"})), "versions of packages (baseline numpy 2, current"),
    (of(1.0, context={**CONTEXT, "flags": "tf32"}), "different context flags"),
    (of(1.0, context={**CONTEXT, "device": "cuda"}), "different context device"),
    (of(1.0, context={**CONTEXT, "threads": 4}), "different context threads"),
    (of(1.0, context={**CONTEXT, "cpu_capability": "AVX512"}), "different context cpu_capability"),
    (of(1.0, ops=11), "different metric ops (baseline 10, current 11)"),
    (record({"step_time": timed(1.0)}), "different list of metrics"),
    (record(calls=(Call("fwd", {"ops": counted(1)}, (), (1,)),)), "different calls (baseline [''], current ['fwd'])"),
    (of(1.0, context={**CONTEXT, "clock": float("nan")}), "a record contains a number that is not finite"),
])  # fmt: skip
def test_what_is_not_a_repeat_of_the_same_is_refused_in_one_line(new, what):
    with pytest.raises(BaselineError) as error:
        append(of(1.0, 2.0, code=Code({"a.py": "0" * 12}, {"numpy": "2"})), new)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_repeats_of_a_metric_of_the_users_have_one_unit():
    stored, new = (record({"tokens": timed(1.0, unit=unit)}) for unit in ("tok/s", "tok/min"))
    with pytest.raises(BaselineError, match="different metric tokens"):
        append(stored, new)


def table(*times, **rest):
    case = Case("op=mm", times, **{"loops": 1, "ops": 5, "kernels": 0, "operators": ("aten::mm",), **rest})
    call = Call("", {"cases": counted(*(1,) * len(times))}, (), (0,) * len(times), cases=(case,))
    return record(calls=(call,))


def test_the_times_of_a_case_are_joined_whatever_its_loops():
    (case,) = append(table(100.0, 101.0), table(103.0, loops=2)).calls[0].cases
    assert case.ns == (100, 101, 103)


@pytest.mark.parametrize(
    "new, what",
    [
        ({"definition": "1" * 16}, f"(baseline definition {'0' * 16}, current definition {'1' * 16})"),
        ({"ops": 50}, "(baseline ops 5, current ops 50)"),
        ({"kernels": 1}, "(baseline kernels 0, current kernels 1)"),
        ({"allocations": 1}, "(baseline allocations 0, current allocations 1)"),
        ({"operators": ("aten::bmm",)}, "(baseline operator aten::mm run, current operator aten::bmm run)"),
        ({"work": CaseWork(flops=2.0)}, "(baseline stated flops 1, current stated flops 2)"),
    ],
)
def test_a_case_that_is_not_the_same_is_refused_as_another_call_is(new, what):
    same = {"definition": "0" * 16, "work": CaseWork(flops=1.0)}
    with pytest.raises(BaselineError) as error:
        append(table(100.0, 101.0, **same), table(103.0, **same | new))
    assert "cannot append to the baseline of" in str(error.value)
    assert f"different case op=mm {what}: record the baseline again" in str(error.value)
