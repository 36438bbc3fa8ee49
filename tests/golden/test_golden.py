"""What users read is what it was, to the byte; `make.py --update` accepts a change."""

import re

import pytest
from golden import make


@pytest.mark.long
def test_every_output_is_as_its_file_says():
    changed = make.differences(make.EXPECTED, make.made())
    text = "\n".join(changed.values())
    assert not changed, f"{len(changed)} outputs differ (accept: python tests/golden/make.py --update)\n{text[:20_000]}"


def test_a_changed_an_added_and_a_missing_output_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "outputs", lambda: iter([("a.txt", "one\n"), ("b.txt", "two\n"), ("d.txt", "same\n")]))
    for name, text in (("b.txt", "2\n"), ("c.txt", "three\n"), ("d.txt", "same\n")):
        (tmp_path / name).write_text(text)
    changed = make.differences(tmp_path, make.made())
    assert list(changed) == ["a.txt", "b.txt", "c.txt"]
    assert [line[0] for line in changed["b.txt"].splitlines()[3:]] == ["-", "+"]


def test_a_long_output_is_stored_as_its_digest():
    longest = "x" * make.LARGEST
    assert make.stored(longest) == longest.encode()
    assert re.fullmatch(rb"130001 bytes, SHA-256 [0-9a-f]{64}\n", make.stored(f"{longest}x"))


def test_digits_that_depend_on_the_processor_are_not_stored():
    assert make.stored("0.12345678949 1.5 -2.0000000001e-05 1234567890123") == b"0.123456789 1.5 -2e-05 1234567890123"
