"""Malformed files: each defect is repaired or refused, and either way said in one line with its byte."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace import loads
from pytest_perfdl.trace.decode import Kind, repair
from unit.trace.chrome import kernel, memory, text, trace, x

SLICES = (40, 300, 2**20)
FIRST = '{"ph":"X","cat":"cpu_op","name":"first","pid":1,"tid":1,"ts":1,"dur":1,"args":{}}'
LAST = FIRST.replace("first", "last")
EVENT = '{"ph":"X","cat":"cpu_op","name":"odd","pid":1,"tid":1,"ts":2.5,"dur":1,"args":{"a":1,"value":0}}'


def file(*events: str, head: str = '{"schemaVersion":1,', tail: str = ',"traceName":"t"}') -> bytes:
    return (head + '"traceEvents":[' + ",\n".join(events) + "]" + tail).encode()


def with_value(value: str) -> bytes:
    return file(FIRST, EVENT.replace('"value":0', f'"value":{value}'), LAST)


def names(found) -> list[str]:
    return [found.name_of(row) for row in range(len(found))]


NULL = "NaN or infinite numbers, which JSON does not allow, were read as null"
COMMA = "extra commas were ignored"


@pytest.mark.parametrize("slice_bytes", SLICES)
@pytest.mark.parametrize(
    ("value", "expected", "finding"),
    [
        pytest.param("NaN", None, NULL, id="nan"),
        pytest.param("Infinity", None, NULL, id="infinity"),
        pytest.param("-Infinity", None, NULL, id="minus-infinity"),
        pytest.param("inf", None, NULL, id="inf"),
        pytest.param("-inf", None, NULL, id="minus-inf"),
        pytest.param("-nan(ind)", None, NULL, id="nan-of-windows"),
        pytest.param('{"a":1,}', {"a": 1}, COMMA, id="trailing-comma-object"),
        pytest.param("[1, 2 ,\n]", [1, 2], COMMA, id="trailing-comma-array"),
        pytest.param(
            '"a\x01b"', "a\x01b", "unescaped control characters in strings were read unchanged", id="control-character"
        ),
        pytest.param(
            '"tab\there"', "tab\there", "unescaped control characters in strings were read unchanged", id="raw-tab"
        ),
        pytest.param(
            '"C:\\Users\\new"',
            "C:\\Users\\new",
            "invalid escapes in strings were read as backslashes",
            id="backslash-path",
        ),
        pytest.param(
            '"C:\\dir\\"',
            "C:\\dir\\",
            "invalid escapes in strings were read as backslashes",
            id="path-that-ends-in-a-backslash",
        ),
        pytest.param(
            '"\\q \\" \\u12"',
            '\\q " \\u12',
            "invalid escapes in strings were read as backslashes",
            id="unknown-escape",
        ),
        pytest.param(
            '"say "hi", then go"',
            'say "hi", then go',
            "unescaped quotes in strings were read as part of the string",
            id="unescaped-quote",
        ),
        pytest.param(
            '[""a"", "b"]',
            ['"a"', "b"],
            "unescaped quotes in strings were read as part of the string",
            id="unescaped-quote-in-list",
        ),
        pytest.param(
            '"x\\ud800y"',
            "x\ufffdy",
            "invalid Unicode in strings was read as U+FFFD",
            id="lone-surrogate",
        ),
    ],
)
def test_broken_values_are_repaired(value, expected, finding, slice_bytes):
    found = loads(with_value(value), slice_bytes=slice_bytes)
    assert names(found) == ["first", "odd", "last"]
    assert found.args(1) == {"a": 1, "value": expected}
    assert found.start.tolist() == [1000, 2500, 1000]
    assert [line.partition(" (")[0] for line in found.findings] == [finding]
    position = int(found.findings[0].rpartition(" ")[2][:-1])
    begins = with_value(value).index(b'"value":') + len('"value":')
    assert begins <= position < begins + len(value), "the byte that is named lies in the value"
    assert found.metadata == {"schemaVersion": 1, "traceName": "t"}


@pytest.mark.parametrize("slice_bytes", SLICES)
def test_invalid_utf8_becomes_the_replacement_character(slice_bytes):
    data = with_value('"caf\x00 \x00 \xe9"').replace(b"\x00", b"\xe9").replace("é".encode(), "é".encode())
    found = loads(data, slice_bytes=slice_bytes)
    assert found.args(1)["value"] == "caf\ufffd \ufffd é"
    place = data.index(b"\xe9")
    assert found.findings == (f"invalid Unicode in strings was read as U+FFFD (2 times, first at byte {place})",)


@pytest.mark.parametrize("slice_bytes", SLICES)
def test_a_byte_order_mark_is_passed_over(slice_bytes):
    found = loads(b"\xef\xbb\xbf" + file(FIRST), slice_bytes=slice_bytes)
    assert names(found) == ["first"]
    assert found.findings == ("a byte order mark at the start was ignored (byte 0)",)


@pytest.mark.parametrize("slice_bytes", SLICES)
@pytest.mark.parametrize(
    "value",
    ['"x: NaN,}"', '"[1,]"', '"\\"},{\\"ph\\":"', '"\\\\"', '"-inf, Infinity"', '"é\\ud83d\\ude00"', '"C:\\\\Users"'],
    ids=["nan", "comma", "boundary", "backslash", "infinity", "unicode", "path"],
)
def test_well_formed_strings_are_never_altered(value, slice_bytes):
    broken = with_value(value).replace(b'"a":1', b'"a":NaN')
    found = loads(broken, slice_bytes=slice_bytes)
    assert found.args(1) == {"a": None, "value": json.loads(value)}
    assert loads(with_value(value), slice_bytes=slice_bytes).findings == ()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.long
@given(_json, st.sampled_from([None, 1]), st.booleans())
def test_repair_leaves_valid_json_as_it_is(value, indent, ascii_only):
    written = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    try:
        data = written.encode()
        json.loads(data).__repr__().encode()
    except UnicodeEncodeError:
        return  # lone surrogates are not valid Unicode, and are repaired
    assert repair(data) == (data, [])


def test_a_sum_of_repairs_is_counted_by_kind_with_the_first_byte():
    data = file(*[EVENT.replace('"value":0', f'"value":{value}') for value in ("NaN", "[1,]", "inf", "NaN")])
    first = data.index(b"NaN")
    assert loads(data).findings == (
        f"NaN or infinite numbers, which JSON does not allow, were read as null (3 times, first at byte {first})",
        f"extra commas were ignored (1 time, first at byte {data.index(b',]')})",
    )
    assert {kind for kind, _ in repair(b'["\x01", NaN, "\\q", "\xff",,]')[1]} == {
        Kind.CONTROL,
        Kind.NOT_FINITE,
        Kind.ESCAPE,
        Kind.UNICODE,
        Kind.COMMA,
    }


@pytest.mark.parametrize("slice_bytes", SLICES)
def test_an_event_beyond_repair_is_left_out_and_its_neighbors_stay(slice_bytes):
    data = file(FIRST, EVENT.replace('"ts":2.5', '"ts":'), LAST)
    found = loads(data, slice_bytes=slice_bytes)
    assert names(found) == ["first", "last"]
    assert found.findings == (f"1 malformed event was skipped (first at byte {data.index(EVENT[:40].encode())})",)
    last = loads(file(FIRST, EVENT.replace('"ts":2.5', '"ts":')), slice_bytes=slice_bytes)
    assert names(last) == ["first"]
    assert last.metadata["traceName"] == "t"
    assert len(last.findings) == 1


@pytest.mark.parametrize("slice_bytes", SLICES)
def test_broken_metadata_around_the_events(slice_bytes):
    found = loads(file(FIRST, head='{"a":NaN,', tail=',"b":[inf],}'), slice_bytes=slice_bytes)
    assert found.metadata == {"a": None, "b": [None]}
    assert len(found.findings) == 2
    found = loads(file(FIRST, head='{"a":,', tail=',"b":}'), slice_bytes=slice_bytes)
    assert (names(found), found.metadata) == (["first"], {})
    assert [line.partition(", from byte")[0] for line in found.findings] == [
        "the metadata before the events",
        "the metadata after the events",
    ]
    found = loads(file(FIRST) + b"} again", slice_bytes=slice_bytes)
    assert (names(found), found.metadata["traceName"]) == (["first"], "t")
    assert found.findings == (f"text after the closing bracket, from byte {len(file(FIRST))}, was ignored",)
    assert names(loads(b"[" + FIRST.encode() + b"],", slice_bytes=slice_bytes)) == ["first"]


@pytest.mark.parametrize("slice_bytes", SLICES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_file_cut_anywhere_keeps_every_whole_event(packed, slice_bytes):
    data = file(FIRST, EVENT, EVENT.replace('"value":0', '"value":[{"ph":"x"},{"ph":"y"}]'), LAST)
    whole_at = [data.index(event.encode()) + len(event) for event in (FIRST, EVENT)]
    whole_at += [data.index(b'"y"}]}}') + 7, data.index(LAST.encode()) + len(LAST)]
    for length in range(len(data)):
        cut = cut_plain = data[:length]
        whole = sum(end <= length for end in whole_at)
        if packed:
            # Without compression the cut text is what is left of the file.
            cut = gzip.compress(cut, 0)[:-8]
        if whole == 0:
            with pytest.raises(TraceError):
                loads(cut, slice_bytes=slice_bytes)
            continue
        found = loads(cut, slice_bytes=slice_bytes)
        assert len(found) == whole
        assert found.metadata["schemaVersion"] == 1
        assert len(found.findings) == 1 + packed + cut_plain.endswith(b"],")


def test_what_is_said_about_a_file_cut_short():
    data = file(FIRST, EVENT, LAST)
    end = data.index(b'"last"')
    rest = data.index(LAST.encode())
    said = f"the trace is truncated at byte {end}: the incomplete event from byte {rest} was skipped"
    assert loads(data[:end]).findings == (said,)
    assert loads(data[:-1]).findings == (
        f"the trace is truncated at byte {len(data) - 1}: closing brackets are missing",
    )


def test_odd_but_valid_json():
    found = trace(
        x("huge", 1, 1, pid=2**70, number=2**80),
        x("text", "2.5", "1"),
        {"ph": "X", "name": "without", "ts": 3, "pid": 1, "tid": 1},
        x("backwards", 4, -2),
        kernel("k", 5, 1, 2**64 + 5),
        memory(6, 1, Addr=2**63),
    )
    assert found.start.tolist() == [1000, 2500, 3000, 4000, 5000]
    assert found.duration.tolist() == [1000, 1000, 0, 0, 1000]
    assert found.label(int(found.pid[0])) == str(2**70)
    assert found.correlation[4] == 5, "wrapped to 64 bits"
    assert loads(b"[" + FIRST.encode() + b"]").start.tolist() == [1000]
    assert len(loads(b'{"traceEvents":[]}')) == len(loads(b" [ ] ")) == 0


def test_times_with_absurd_exponents_do_not_take_forever():
    found = trace(x("a", "1e999999999", 1), x("b", 1, "1e999999999"), x("c", 1, "1e-999999999"))
    assert names(found) == ["b", "c"]
    assert found.duration.tolist() == [0, 0]


def test_nesting_too_deep_for_the_decoder_costs_one_event():
    deep = "[" * 50_000 + "]" * 50_000
    found = loads(with_value(deep))
    assert names(found) == ["first", "last"]
    with pytest.raises(TraceError, match="not valid JSON"):
        loads(b"[" * 50_000)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "x.json is empty", id="empty"),
        pytest.param(b" \n ", "x.json is empty", id="blank"),
        pytest.param(b"hello", "x.json is not valid JSON: invalid character (byte 0)", id="not-json"),
        pytest.param(b"\n\x00\x00", "x.json is binary data, not a trace", id="binary"),
        pytest.param(b'{"a": 1, b}', "x.json is not valid JSON: expected '\"' (byte 9)", id="bare-key"),
        pytest.param(b'{"traceEvents": [', "x.json is not valid JSON: unexpected end (byte 17)", id="cut-list"),
        pytest.param(b"[1, 2", "x.json is not valid JSON: unexpected end (byte 5)", id="cut-bare-list"),
        pytest.param(b'{"traceEvents": [{]}', "x.json is not valid JSON: expected '\"' (byte 18)", id="no-event-left"),
        pytest.param(
            b'{"a": 1}', "x.json is not a Chrome trace: traceEvents is missing, its keys are a", id="no-events"
        ),
        pytest.param(
            b'"text"', "x.json is not a Chrome trace: the top level is neither an object nor a list (byte 0)", id="text"
        ),
        pytest.param(
            b' {"traceEvents": 5}',
            "x.json is not a Chrome trace: traceEvents is not a list (byte 1)",
            id="events-no-list",
        ),
        pytest.param(
            b'[{"a": 1}, 2]',
            "x.json is not a Chrome trace: its list has no event with a phase",
            id="list-of-something-else",
        ),
    ],
)
@pytest.mark.parametrize("slice_bytes", [1, 2**20])
def test_what_is_no_trace_is_refused_in_one_line(data, message, slice_bytes):
    with pytest.raises(TraceError) as caught:
        loads(data, "x.json", slice_bytes=slice_bytes)
    assert str(caught.value) == message


def test_metadata_that_cannot_be_decoded_are_said():
    found = loads(file(FIRST, head='{"schemaVersion":1,"big":1e999,'))
    assert found.metadata == {"schemaVersion": 1, "traceName": "t"}
    assert found.findings == ("metadata 'big' cannot be decoded and was skipped",)


def test_an_event_longer_than_a_slice_waits_for_its_end():
    inner = [{"ph": "x", "name": str(number)} for number in range(3000)]
    data = text([x("before", 1, 1), x("long", 2, 1, inner=inner), x("after", 3, 1)])
    found = loads(data, slice_bytes=100)
    assert names(found) == ["before", "long", "after"]
    assert found.args(1)["inner"] == inner
    assert found.findings == ()
