"""Files as they come: compressed, damaged, too large, and those that are something else."""

import gzip
import zlib

import pytest

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace import loads, read
from pytest_perfdl.trace import reader as source_module
from unit.trace.chrome import text, x

DATA = text([x(f"op {number}", number, 1) for number in range(500)])


def refusal(data: bytes, **options) -> str:
    with pytest.raises(TraceError) as caught:
        loads(data, "x.json", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_several_members_and_padding_are_one_text():
    data = gzip.compress(DATA[:700]) + gzip.compress(DATA[700:]) + b"\0" * 512
    assert len(loads(data)) == 500
    assert loads(data).findings == ()


def test_what_follows_the_compressed_data_is_said():
    packed = gzip.compress(DATA)
    found = loads(packed + b"rubbish")
    assert len(found) == 500
    assert found.findings == (f"data after the compressed data, from byte {len(packed)} of the file, was ignored",)


def test_truncated_gzip_is_read_as_far_as_it_goes():
    packed = gzip.compress(DATA)
    before = 0
    for length in (len(packed) // 3, len(packed) // 2, len(packed) * 3 // 4):
        found = loads(packed[:length])
        text_left = zlib.decompressobj(wbits=31).decompress(packed[:length])
        assert len(found) == text_left.count(b'"args": {}}') > before
        assert found.findings[0] == (
            f"the file is damaged: the compressed data is truncated at byte {length} of the file; "
            "the part before it is used"
        )
        assert found.findings[1].startswith("the trace is truncated at byte ")
        before = len(found)
    assert len(loads(packed[:-1])) == 500
    assert len(loads(packed[:-1]).findings) == 1, "only the checksum is missing"


def test_truncated_gzip_of_which_no_event_survives_is_refused():
    packed = gzip.compress(DATA)
    said = "x.json is damaged: the compressed data is truncated at byte"
    assert refusal(packed[:12]) == f"{said} 12 of the file; nothing can be read"
    assert refusal(gzip.compress(DATA[:60], 0)[:-8]).startswith(said)
    assert refusal(gzip.compress(DATA[:60], 0)[:-8]).endswith("; no events can be read")


def test_damaged_gzip_is_read_up_to_the_damage():
    packed = bytearray(gzip.compress(DATA, 0))
    packed[-6] ^= 255
    found = loads(bytes(packed))
    assert len(found) == 500
    (said,) = found.findings
    assert said.startswith(f"the file is damaged: incorrect data check, at byte {len(packed) - 5} of the file; ")
    assert refusal(b"\x1f\x8bnonsense") == (
        "x.json is damaged: unknown compression method, at byte 3 of the file; nothing can be read"
    )


def test_zip_bombs_stop_at_the_limit(monkeypatch):
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * 20_000_000)
    assert refusal(bomb, limit_bytes=1_000_000) == (
        "x.json is larger than 1000000 bytes decompressed: raise the limit with read_trace(path, limit_bytes=...)"
    )
    monkeypatch.setattr(source_module, "RATIO_FROM", 5_000_000)
    assert refusal(bomb) == (
        "x.json is over 200 times larger when decompressed, which is implausible for a trace: to read it anyway, use "
        "read_trace(path, limit_bytes=...)"
    )
    monkeypatch.setattr(source_module, "PACKED_LIMIT", 2**20)
    assert refusal(gzip.compress(DATA * 40)) == (
        "x.json is larger than 1048576 bytes decompressed: raise the limit with read_trace(path, limit_bytes=...)"
    )


def test_a_given_limit_is_the_only_one(monkeypatch):
    monkeypatch.setattr(source_module, "RATIO_FROM", 0)
    many = text([x("op", 1, 1)] * 20_000)
    assert len(loads(gzip.compress(many), limit_bytes=len(many))) == 20_000
    assert "larger than" in refusal(gzip.compress(many), limit_bytes=len(many) - 1)


def test_plain_files_have_a_limit_too(tmp_path, monkeypatch):
    path = tmp_path / "large.json"
    path.write_bytes(DATA)
    monkeypatch.setattr(source_module, "PLAIN_LIMIT", 2**30)
    assert len(read(path)) == 500
    monkeypatch.setattr(source_module, "PLAIN_LIMIT", 1000)
    with pytest.raises(TraceError, match=r"large\.json is larger than 1000 bytes: raise the limit"):
        read(path)
    assert len(read(path, limit_bytes=len(DATA))) == 500


def test_white_space_without_an_end_is_not_held(monkeypatch):
    monkeypatch.setattr("pytest_perfdl.trace.reader.LARGEST_UNIT", 10_000)
    message = refusal(b"[" + b" " * 100_000, slice_bytes=1000)
    assert message == "x.json cannot be read: an event is longer than 16000 bytes (byte 1)"
    assert "no traceEvents in its first" in refusal(b'{"a":"' + b"x" * 100_000, slice_bytes=1000)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_progress_is_told_in_bytes_of_the_file(tmp_path, packed):
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(DATA, 0) if packed else DATA)
    told: list[tuple[int, int]] = []
    read(path, progress=lambda done, total: told.append((done, total)), slice_bytes=4096)
    size = path.stat().st_size
    assert told[-1] == (size, size)
    assert told == sorted(told)
    assert {total for _, total in told} == {size}
