import pytest

from pytest_perfdl.machine.rates import Machine

MEASURED = Machine(
    memory_bytes_per_s=9.87654321e9,
    flops_per_s={"float32": 1.23456e11, "bfloat16": 5e10},
    bandwidths=((2**18, 5.55555e10), (2**27, 9.87654321e9)),
    cache_bytes=2**25,
    event_ns=812.34567,
    spread={"float32": 0.0123456},
    source={"flops_per_s": "measured"},
    key="cpu-1t torch 2.13.0",
    date="2026-11-23",
)


def test_a_file_holds_what_is_known_in_four_digits_and_nothing_else(tmp_path):
    path = tmp_path / "cpu-1t" / "machine.json"
    MEASURED.save(path)
    assert path.read_bytes().endswith(b"}\n")
    assert b"null" not in path.read_bytes()
    assert b"ratios" not in path.read_bytes()
    found = Machine.load(path)
    assert found.flops_per_s == {"float32": 1.235e11, "bfloat16": 5e10}
    assert found.bandwidths == ((2**18, 5.556e10), (2**27, 9.877e9))
    assert (found.cache_bytes, found.event_ns, found.date) == (2**25, 812.3, "2026-11-23")
    before = path.read_bytes()
    found.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["machine.json"]


def test_what_was_measured_is_the_peaks():
    peaks = MEASURED.peaks
    assert (peaks.bytes_per_s, peaks.cache_bytes, peaks.source) == (9.87654321e9, 2**25, "measured 2026-11-23")
    assert peaks.bandwidth(1) == 5.55555e10
    assert peaks.bandwidth(2**30) == 9.87654321e9
    assert Machine(flops_per_s={"float32": 1e12}, memory_bytes_per_s=1e9).peaks is None
    assert MEASURED.without_peaks().peaks is None
    assert Machine(contention=1.5).or_else(MEASURED).peaks == peaks
    joined = MEASURED.or_else(Machine(contention=1.5))
    assert (joined.key, joined.date, joined.contention) == ("cpu-1t torch 2.13.0", "2026-11-23", 1.5)


@pytest.mark.parametrize(
    "text, said",
    [
        ("[]", "is not a machine.json file"),
        ('{"flops_per_s": {"float32": "fast"}}', "Expected `float`"),
        ('{"speed": 1}', "unknown field 'speed'"),
        ('{"bandwidths": [[1]]}', "array"),
        ("{", "is not a machine.json file"),
    ],
)
def test_a_file_that_is_no_machine_is_refused(tmp_path, text, said):
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a machine\\.json file") as refused:
        Machine.load(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
