"""The text of a baseline: readable as a diff, and the same bytes for the same record."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import COMMIT, TREE, counted, invalid, record, rows, timed

from pytest_perfdl.baseline.files import outline
from pytest_perfdl.baseline.text import dump, parse
from pytest_perfdl.model.errors import OtherSchemaError, RecordError
from pytest_perfdl.model.record import Call, Case, Code, Finding, Key, MeasurementPlan, Occasion, Record, Row, Series

RECORD = record(
    {"step_time": timed(41_234_567, 41_300_001), "ops": counted(3, 3)},
    rows=rows(mm=(2, 100, 102)),
    profiled=(120, 121),
    context={"torch": "2.13.0", "driver": None},
    modes={"page_faults": ("none",)},
)
EXPECTED = """\
{
 "calls": [
  {
   "metrics": {
    "ops": {
     "better": "lower",
     "kind": "counted",
     "unit": "1",
     "values": [3, 3]
    },
    "step_time": {
     "better": "lower",
     "kind": "timed",
     "unit": "ns",
     "values": [41230000, 41300000]
    }
   },
   "name": "",
   "op_counts": [],
   "profiled_ns": [120, 121],
   "rows": [
    {"count": 2, "kind": "operator", "name": "mm", "ns": [100, 102]}
   ],
   "uncounted": []
  }
 ],
 "context": {
  "driver": null,
  "torch": "2.13.0"
 },
 "integrity": [],
 "key": {
  "parts": {
   "accelerator": null,
   "cpu": "EPYC",
   "threads": 1
  },
  "slug": "cpu-epyc-8c-1t"
 },
 "modes": {
  "page_faults": ["none"]
 },
 "occasions": [
  {"commit": "COMMIT", "date": "2026-05-01T10:00:00Z", "repeats": 2, "tree": "TREE"}
 ],
 "plan": {
  "period": 1,
  "profiled": 4,
  "seed": 0,
  "steps": 40,
  "threads": 1,
  "warmup": 15
 },
 "schema": 1,
 "test": "tests/perf/test_gpt.py::test_step[bf16]",
 "test_hash": "abc123"
}
""".replace("COMMIT", COMMIT).replace("TREE", TREE)


def test_the_text_is_sorted_and_indented_with_one_row_a_line():
    assert dump(RECORD).decode() == EXPECTED


def test_the_order_of_mappings_does_not_matter():
    call = RECORD.calls[0]
    turned = replace(
        RECORD,
        calls=(replace(call, series=dict(reversed(call.series.items()))),),
        context=dict(reversed(RECORD.context.items())),
    )
    assert dump(turned) == dump(RECORD)


WORD = st.text(max_size=8)
NUMBER = st.integers(0, 2**60) | st.just(0.0) | st.floats(1e-90, 1e18)
SIZE = st.just(0.0) | st.floats(1e-90, 1e90) | st.floats(-1e90, -1e-90)
HASH = st.none() | st.text("0123456789abcdef", min_size=40, max_size=40)


@st.composite
def records(draw):
    repeats = draw(st.integers(1, 4))

    def several(one):
        return st.lists(one, min_size=repeats, max_size=repeats).map(tuple)

    series = st.builds(
        Series, st.sampled_from(["timed", "counted"]), WORD, st.sampled_from(["lower", "higher"]), several(NUMBER)
    )
    whole = several(st.integers(0, 10**12))
    row = st.builds(Row, st.sampled_from(["operator", "kernel", "idle"]), WORD, NUMBER, whole)
    call = st.builds(
        Call,
        WORD,
        st.dictionaries(WORD, series, min_size=1, max_size=3),
        st.lists(row, max_size=4, unique_by=lambda each: (each.kind, each.name)).map(tuple),
        whole,
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        st.lists(WORD, max_size=2).map(tuple),
    )
    scalar = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | SIZE | WORD
    return Record(
        test=draw(WORD),
        key=Key(draw(WORD), draw(st.dictionaries(WORD, scalar, max_size=3))),
        context=draw(st.dictionaries(WORD, scalar, max_size=3)),
        test_hash=draw(WORD),
        plan=MeasurementPlan(
            *draw(st.tuples(*[st.integers(0, 99)] * 6)), draw(st.dictionaries(WORD, st.integers(1, 99), max_size=2))
        ),
        calls=tuple(draw(st.lists(call, min_size=1, max_size=2, unique_by=lambda each: each.name))),
        occasions=(Occasion(repeats, draw(WORD), draw(HASH), draw(HASH)),),
        modes=draw(st.dictionaries(WORD, st.lists(WORD, max_size=2).map(tuple), max_size=2)),
        integrity=tuple(
            draw(st.lists(st.builds(Finding, st.sampled_from(["invalid", "note"]), WORD, WORD), max_size=2))
        ),
    )


@pytest.mark.long
@given(records())
def test_reading_and_writing_again_gives_the_same_bytes(value):
    data = dump(value)
    assert dump(parse(data)) == data
    assert parse(dump(parse(data))) == parse(data)
    assert data.endswith(b"}\n")
    assert data.isascii()
    assert b"\r" not in data


def test_a_plan_without_loops_is_written_as_it_was_before_there_were_any():
    assert "loops" not in json.loads(dump(record()))["plan"]
    assert json.loads(dump(record(plan=MeasurementPlan(15, 40, loops={"": 64}))))["plan"]["loops"] == {"": 64}


def test_a_file_takes_a_line_so_that_a_review_sees_which_changed():
    before, after = (
        dump(replace(RECORD, code=Code({"src/b.py": "0" * 12, "src/a.py": content * 12}, {"numpy": "1.2"}))).decode()
        for content in "12"
    )
    changed = set(before.splitlines()) ^ set(after.splitlines())
    assert changed == {f'   "src/a.py": "{content * 12}",' for content in "12"}
    assert '  "packages": {\n   "numpy": "1.2"\n  }\n' in after
    assert parse(after.encode()).code.files == {"src/a.py": "2" * 12, "src/b.py": "0" * 12}


def test_names_that_are_no_text_survive():
    odd = replace(RECORD, test="t/a.py::b[\ud800 \u202e \x00]")
    assert parse(dump(odd)).test == odd.test


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_say_is_refused(number):
    with pytest.raises(RecordError, match="contains a number that is not finite"):
        dump(replace(RECORD, context={"clock": number}))


TWO_ROWS = replace(RECORD, calls=(replace(RECORD.calls[0], rows=RECORD.calls[0].rows * 2),))
TWO_CASES = replace(RECORD, calls=(replace(RECORD.calls[0], cases=(Case("op=mm", (1.0, 2.0), 1, 1, 0),) * 2),))


@pytest.mark.parametrize("data, says", [
    (b"", "is damaged at line 1, column 1 (byte 0): Expecting value"),
    (dump(RECORD)[:200], "is damaged at line 1"),
    ('{"é": 1,\n "ü" 2}'.encode(), "is damaged at line 2, column 6 (byte 16): Expecting ':' delimiter"),
    (b'{"a": "\xff"}', "is damaged at byte 7: not UTF-8 text"),
    (b"[" * 200_000, "is damaged: the JSON is nested too deeply"),
    (b'{\n<<<<<<< HEAD\n "a": 1\n=======\n', "has an unresolved merge conflict at line 2"),
    (b"[1, 2]", "is not a pytest-perfdl record"),
    (b'{"schema": 1}', "is malformed (missing field `test`)"),
    (b"\xef\xbb\xbf" + dump(RECORD), "is damaged at line 1, column 1 (byte 0): Unexpected UTF-8 BOM"),
    (dump(RECORD).decode().encode("utf-16"), "is damaged at byte 0: not UTF-8 text"),
    (b'{"schema": 1, "test": "a", "test": "b"}', "is damaged ('test' stands twice)"),
    (
        dump(RECORD).replace(b'"ops": {', b'"step_time": {'),
        "is damaged (calls[0].metrics: 'step_time' stands twice)",
    ),
    (dump(RECORD).replace(b'{"count": 2,', b'{"count": 2, "count": 3,'), "(calls[0].rows[0]: 'count' stands twice)"),
    (dump(TWO_ROWS), "is malformed (calls[0].rows: two are called 'operator mm')"),
    (dump(TWO_CASES), "is malformed (calls[0].cases: two are called 'op=mm')"),
    (dump(replace(RECORD, calls=RECORD.calls * 2)), "is malformed (calls: two are called '')"),
    (b'{"schema": ' + b"9" * 5000 + b"}", "is damaged: a number has over 4300 digits"),
    (dump(replace(RECORD, calls=())), "contains no measurement: "),
    (dump(replace(RECORD, calls=(replace(RECORD.calls[0], series={}),))), "contains no measurement: "),
])  # fmt: skip
def test_damage_is_located(data, says):
    with pytest.raises(RecordError) as error:
        parse(data)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [b"\xef\xbb\xbf" + dump(RECORD), dump(RECORD).decode().encode("utf-16")])
def test_an_outline_is_of_the_same_encoding(data):
    assert outline(dump(RECORD)).test == RECORD.test
    for read in (parse, outline):
        with pytest.raises(RecordError, match="is damaged"):
            read(data)


def test_a_name_that_is_twice_in_another_case_or_kind_is_none():
    row = Row("kernel", "mm", 1, (1, 1))
    call = replace(RECORD.calls[0], rows=(*RECORD.calls[0].rows, row, replace(row, name="MM")))
    assert parse(dump(replace(RECORD, calls=(call,)))).calls[0].rows == call.rows


def test_a_newer_schema_is_told_apart():
    with pytest.raises(OtherSchemaError):
        parse(json.dumps({"schema": 2}).encode())


def test_findings_and_calls_take_a_line_each():
    text = dump(replace(RECORD, integrity=(invalid("a"), invalid("b")))).decode()
    assert ' {"code": "broken", "level": "invalid", "message": "a"},\n' in text
