import json
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from making import TEST, counted, invalid, record, rows, timed

from pytest_perfdl.record import Call, NewerRecordError, Occasion, RecordError, from_json, scope, significant, to_json

RECORD = record(
    {"step_time": timed(41_234_567, 41_300_001), "ops": counted(1699, 1699), "tokens": timed(12.5, 13, unit="tok/s")},
    rows=rows(mm=(24, 8_100_000, 8_200_000), add=(1 / 3, 10, 12)),
    modes={"page_faults": ("few", "none")},
)


def through_json(value):
    return from_json(json.loads(json.dumps(to_json(value))))


def test_a_record_survives_json_but_for_its_rounding():
    read = through_json(RECORD)
    assert read.metrics()["step_time"].values == (41_230_000, 41_300_000)
    assert read.metrics()["ops"].values == (1699, 1699)
    assert read.calls[0].rows[1].count == pytest.approx(1 / 3, rel=1e-11)
    assert read.calls[0].rows[0].ns == (8_100_000, 8_200_000)
    assert read == replace(RECORD, calls=read.calls)


@given(st.floats(-1e300, 1e300) | st.integers(-(2**70), 2**70))
def test_rounding_is_idempotent_and_close(value):
    once = significant(value)
    assert significant(once) == once
    assert json.dumps(significant(json.loads(json.dumps(once)))) == json.dumps(once)
    assert math.isclose(once, value, rel_tol=5.1e-4) or abs(value) < 1e-300


@pytest.mark.parametrize("value, rounded", [(0, 0), (12, 12), (12.0, 12), (41_234_567, 41_230_000),
                                            (0.00123456, 0.001235),
                                            (999.96, 1000), (99_995, 100_000), (-1234.5, -1234), (1e300, 1e300),
                                            (math.inf, math.inf)])  # fmt: skip
def test_four_significant_digits(value, rounded):
    assert significant(value) == rounded
    assert type(significant(value)) is type(rounded)


@example(0.9999999999999)  # rounds to a whole number
@example(2.0**53)
@given(st.floats(0, 1e18) | st.integers(0, 2**80))
def test_counts_are_written_the_same_after_reading(value):
    first = to_json(record({"flops": counted(value)}))["calls"][0]["metrics"]["flops"]["values"]
    again = to_json(record({"flops": counted(*json.loads(json.dumps(first)))}))["calls"][0]["metrics"]["flops"][
        "values"
    ]
    assert json.dumps(first) == json.dumps(again)
    assert first[0] == pytest.approx(value, rel=1e-11)
    if isinstance(value, int) or value.is_integer():
        assert first[0] == value


def test_metrics_of_named_calls_carry_the_calls_name():
    forward = Call("fwd", {"step_time": timed(5)}, (), (5,))
    unnamed = Call("", {"step_time": timed(7)}, (), (7,))
    assert {name: series.values for name, series in record(calls=(unnamed, forward)).metrics().items()} == {
        "step_time": (7,),
        "fwd.step_time": (5,),
    }


def test_repeats_are_those_of_all_occasions():
    assert record(occasions=(Occasion(2, "", None, None), Occasion(3, "", None, None))).repeats == 5


def test_what_the_reference_load_took_is_kept_with_its_occasion():
    old, new = Occasion(2, "", None, None), Occasion(2, "", None, None, (4_812_345, 4_900_000))
    stored = record({"ops": counted(1, 1, 1, 1)}, occasions=(old, new))
    data = to_json(stored)

    assert stored.reference_ns == (None, None, 4_812_345, 4_900_000)
    assert [occasion.get("reference_ns") for occasion in data["occasions"]] == [None, [4_812_000, 4_900_000]]
    assert through_json(stored).reference_ns == (None, None, 4_812_000, 4_900_000)
    assert to_json(through_json(stored)) == data


def test_a_record_of_before_the_reference_load_was_timed_is_read_and_written_as_it_was():
    data = json.loads(json.dumps(to_json(RECORD)))

    assert list(data["occasions"][0]) == ["repeats", "date", "commit", "tree"]
    assert to_json(from_json(data)) == data
    assert from_json(data).reference_ns == (None, None)


def test_stability_is_agreement_of_all_repeats():
    assert counted(3, 3, 3).stable
    assert not counted(3, 3, 4).stable


def test_sizes_are_exact_in_a_narrower_scope_than_counts():
    assert scope("ops") == ("torch", "flags", "device")
    assert scope("peak_memory") == ("torch", "flags", "device", "threads", "cpu_capability")
    assert scope("of_my_own") == scope("peak_memory")


def broken(**change):
    data = to_json(replace(RECORD, integrity=(invalid(),)))
    for path, value in change.items():
        *way, last = path.split("__")
        place = data
        for part in way:
            place = place[int(part) if part.isdigit() else part]
        if value is KeyError:
            del place[last]
        else:
            place[last] = value
    return data


@pytest.mark.parametrize(
    "change, says",
    [
        ({"schema": KeyError}, "is not a perfdl record: it has no schema number"),
        ({"schema": "1"}, "has no schema number"),
        ({"test": KeyError}, "has no 'test'"),
        ({"test": 3}, "'test' should be str, is int"),
        ({"key": "cpu"}, "is malformed"),
        ({"key__slug": None}, "'slug' should be str"),
        ({"context__torch": [2]}, "'torch' should be a scalar"),
        ({"plan__speed": 3}, "is malformed"),
        ({"plan__steps": "many"}, "is malformed"),
        ({"calls__0__metrics__ops__kind": "guessed"}, "'guessed' is none of timed, counted"),
        ({"calls__0__metrics__ops__better": "more"}, "'more' is none of lower, higher"),
        ({"calls__0__metrics__ops__values": []}, "a metric without values"),
        ({"calls__0__metrics__ops__values": [1, None]}, "None is not a finite number"),
        ({"calls__0__metrics__ops__values": [1, math.nan]}, "nan is not a finite number"),
        ({"calls__0__metrics__ops__values": [1, True]}, "True is not a finite number"),
        ({"calls__0__metrics__ops__values": [1]}, "its occasions count 2 repeats, a metric has 1"),
        ({"calls__0__rows__0__kind": "magic"}, "'magic' is none of operator, kernel, idle"),
        ({"calls__0__rows__0__ns": [1, 2, 3]}, "a metric has 3"),
        ({"occasions": [{"repeats": 2}]}, "is malformed"),
        ({"occasions__0__reference_ns": [5]}, "an occasion of 2 repeats has other reference times"),
        ({"occasions__0__reference_ns": [5, 0]}, "an occasion of 2 repeats has other reference times"),
        ({"occasions__0__reference_ns": [5, "6"]}, "'6' is not a finite number"),
        ({"occasions__0__reference_ns": []}, "is malformed"),
        ({"integrity__0__level": KeyError}, "is malformed"),
        ({"modes": None}, "is malformed"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(change, says):
    with pytest.raises(RecordError) as error:
        from_json(broken(**change))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [None, [], "record", 3, {}])
def test_other_json_is_no_record(data):
    with pytest.raises(RecordError, match="is not a perfdl record"):
        from_json(data)


def test_a_newer_schema_asks_for_an_upgrade():
    with pytest.raises(NewerRecordError, match=r"newer pytest-perfdl \(schema 99, this one reads \d+\): upgrade"):
        from_json({"schema": 99, "test": TEST})
