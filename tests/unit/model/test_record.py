import json
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from making import TEST, counted, invalid, record, rows, timed

from pytest_perfdl.model.errors import OtherSchemaError, RecordError
from pytest_perfdl.model.record import Call, Code, Occasion
from pytest_perfdl.model.record_json import from_json, significant, to_json

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


@pytest.mark.long
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
@given(st.just(0.0) | st.floats(1e-90, 1e18) | st.integers(0, 2**80))
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
        ({"schema": KeyError}, "is not a pytest-perfdl record: it has no schema number"),
        ({"schema": "1"}, "has no schema number"),
        ({"schema": True}, "has no schema number"),
        ({"test": KeyError}, "(missing field `test`)"),
        ({"test": 3}, "(test: expected `str`, got `int`)"),
        ({"key": "cpu"}, "(key: expected `object`, got `str`)"),
        ({"key__slug": None}, "(key.slug: expected `str`, got `null`)"),
        ({"key__parts": ["cpu"]}, "(key.parts: expected `object`, got `array`)"),
        ({"context__torch": [2]}, "(context[...]: expected `"),
        ({"context__clock": math.inf}, "(context.clock: inf is not a number up to"),
        ({"context__clock": 2**63}, "(context[...]: expected `int`"),
        ({"plan__speed": 3}, "(plan: object contains unknown field `speed`)"),
        ({"plan__steps": "many"}, "(plan.steps: expected `int`, got `str`)"),
        ({"plan__steps": -1}, "(plan.steps: expected `int` >= 0)"),
        ({"calls__0__metrics__ops__kind": "guessed"}, "(calls[0].metrics[...].kind: invalid enum value 'guessed')"),
        ({"calls__0__metrics__ops__better": "more"}, "invalid enum value 'more'"),
        ({"calls__0__metrics__ops__values": []}, "(calls[0].metrics.ops: 0 values for 2 repeats)"),
        ({"calls__0__metrics__ops__values": [1, None]}, "(calls[0].metrics[...].values[1]: expected `int | float`"),
        ({"calls__0__metrics__ops__values": [1, math.nan]}, "(calls[0].metrics.ops: nan is not a number up to 1e+100)"),
        ({"calls__0__metrics__ops__values": [1, math.inf]}, "(calls[0].metrics.ops: inf is not a number up to 1e+100)"),
        ({"calls__0__metrics__ops__values": [1, 1e101]}, "(calls[0].metrics.ops: 1e+101 is not a number up to 1e+100)"),
        (
            {"calls__0__metrics__ops__values": [1, 1e-101]},
            "(calls[0].metrics.ops: 1e-101 is not a number up to 1e+100)",
        ),
        ({"calls__0__metrics__ops__values": [1, 10**101]}, "is not a number up to 1e+100)"),
        ({"calls__0__metrics__ops__values": [1, True]}, "values[1]: expected `int | float`, got `bool`)"),
        ({"calls__0__metrics__ops__values": [1]}, "(calls[0].metrics.ops: 1 value for 2 repeats)"),
        ({"calls__0__metrics__step_time__values": [1, 2**61 + 512]}, "(calls[0].metrics.step_time: 23058430092136944"),
        ({"calls__0__metrics__step_time__values": [1, 0]}, "step_time: 0 ns, expected a time above 0)"),
        ({"calls__0__metrics__step_time__values": [-5, 1]}, "step_time: -5 ns, expected a time above 0)"),
        ({"calls__0__metrics__step_time__unit": "s"}, "(calls[0].metrics.step_time.unit: 's', expected 'ns')"),
        ({"calls__0__metrics__step_time__kind": "counted"}, "step_time.kind: 'counted', expected 'timed')"),
        ({"calls__0__metrics__step_time__better": "higher"}, "step_time.better: 'higher', expected 'lower')"),
        ({"calls__0__metrics__ops__values": [1, -1]}, "(calls[0].metrics.ops: -1, expected a number of at least 0)"),
        ({"calls__0__profiled_ns": [1, -1]}, "(calls[0].profiled_ns: -1, expected a number of at least 0)"),
        ({"calls__0__rows__0__ns": [-1, 2]}, "(calls[0].rows[0].ns: -1, expected a number of at least 0)"),
        ({"calls__0__rows__0__count": -1}, "(calls[0].rows[0].count: -1, expected a number of at least 0)"),
        ({"calls": to_json(RECORD)["calls"] * 2}, "(calls: two are called '')"),
        ({"calls__0__rows__0__kind": "magic"}, "(calls[0].rows[0].kind: invalid enum value 'magic')"),
        ({"calls__0__rows__0__ns": [1, 2, 3]}, "(calls[0].rows[0].ns: 3 values for 2 repeats)"),
        ({"calls__0__rows__0__ns": [1, -(2**62)]}, "(calls[0].rows[0].ns: -461168601842738790"),
        ({"calls__0__op_counts": [1.5]}, "(calls[0].op_counts[0]: expected `int`, got `float`)"),
        ({"calls__0__uncounted": "aten::mm"}, "(calls[0].uncounted: expected `array`, got `str`)"),
        ({"occasions": []}, "(occasions: 0 repeats, expected 1 to"),
        ({"occasions": [{"repeats": 2}]}, "(occasions[0]: missing field `date`)"),
        ({"occasions__0__repeats": 10**9}, "(occasions[0].repeats: expected `int` <= 100000)"),
        ({"occasions__0__repeats": 2.0}, "(occasions[0].repeats: expected `int`, got `float`)"),
        ({"occasions__0__date": 20260501}, "(occasions[0].date: expected `str`, got `int`)"),
        ({"occasions__0__commit": "--index-output=/tmp/x"}, "(occasions[0].commit: not a full hash in lower case)"),
        ({"occasions__0__commit": "a" * 40 + "\n"}, "(occasions[0].commit: not a full hash in lower case)"),
        ({"occasions__0__commit": "HEAD"}, "(occasions[0].commit: not a full hash in lower case)"),
        ({"occasions__0__tree": "-" + "a" * 39}, "(occasions[0].tree: not a full hash in lower case)"),
        ({"occasions__0__reference_ns": [5]}, "(occasions[0].reference_ns: 1 value for 2 repeats)"),
        ({"occasions__0__reference_ns": [5, 0]}, "(occasions[0].reference_ns: 0 ns, expected a time above 0)"),
        ({"occasions__0__reference_ns": [5, "6"]}, "(occasions[0].reference_ns[1]: expected `int | float"),
        ({"occasions__0__reference_ns": []}, "(occasions[0].reference_ns: 0 values for 2 repeats)"),
        ({"occasions__0__seconds": math.nan}, "(occasions[0].seconds: nan is not a number"),
        ({"integrity__0__level": KeyError}, "(integrity[0]: missing field `level`)"),
        ({"integrity__0__level": "fatal"}, "(integrity[0].level: invalid enum value 'fatal')"),
        ({"modes": None}, "(modes: expected `object`, got `null`)"),
        ({"plan__\ud800": 1}, "(a name is not valid Unicode)"),
        ({"exemplars": {"": "/etc/passwd"}}, "(exemplars[...]: not a full hash in lower case)"),
        ({"code": {}}, "(code: missing field `files`)"),
        ({"code": {"files": {"a.py": "f" * 40}}}, "(code.files[...]: not an abbreviated hash)"),
        *(
            ({"code": {"files": {path: "f" * 12}}}, "(a key of code.files: not a path relative to the repository)")
            for path in ("/etc/passwd", "../a", "a/../b", "-x", ":(top)", "a\nb", "a\0b", "a/", "", ".", "a//b", "a\\b")
        ),
        ({"code": {"files": {}, "ignored": ["../a"]}}, "(code.ignored[0]: not a path relative to the repository)"),
        ({"code": {"files": {str(n): "f" * 12 for n in range(10_001)}}}, "(code.files: expected `object` of length"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(change, says):
    with pytest.raises(RecordError) as error:
        from_json(broken(**change))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_commit_is_a_full_hash_of_either_kind():
    for commit in ("a1" * 20, "b2" * 32, None):
        data = broken(occasions__0__commit=commit, occasions__0__tree=commit)
        assert from_json(data).occasions[0].commit == commit
        assert to_json(from_json(data)) == data


def test_code_is_there_where_it_was_noted():
    whole = replace(RECORD, code=Code({"a.py": "0" * 12, ".b/..c ä.txt": "1" * 12}))
    part = replace(RECORD, code=Code({"a.py": "0" * 12}, {"numpy": "1.2"}, ("built/_C.so",), 3))
    assert "code" not in to_json(RECORD)
    assert to_json(whole)["code"].keys() == {"files"}
    for value in (RECORD, whole, part):
        assert through_json(value).code == value.code
    assert whole.code.is_complete
    assert not part.code.is_complete


def test_what_a_later_version_adds_beside_is_passed_over():
    data = broken(of_later=1, occasions__0__of_later=2, calls__0__of_later=[3])
    assert from_json(data) == from_json(broken())


def test_an_error_is_short_however_long_the_name():
    name = "x\n" * 100_000
    with pytest.raises(RecordError) as error:
        from_json(broken(calls__0__metrics={name: {"kind": name, "unit": "", "better": "lower", "values": [1, 2]}}))
    with pytest.raises(RecordError) as other:
        from_json(broken(calls__0__metrics={name: {"kind": "timed", "unit": "", "better": "lower", "values": []}}))
    for text in (str(error.value), str(other.value)):
        assert len(text) < 2000
        assert "\n" not in text


@pytest.mark.parametrize("data", [None, [], "record", 3, {}])
def test_other_json_is_no_record(data):
    with pytest.raises(RecordError, match="is not a pytest-perfdl record"):
        from_json(data)


@pytest.mark.parametrize("schema", [0, 99])
def test_another_schema_is_refused(schema):
    with pytest.raises(OtherSchemaError, match=rf"another version .*\(schema {schema}, this one reads 1\): use that"):
        from_json({"schema": schema, "test": TEST})
