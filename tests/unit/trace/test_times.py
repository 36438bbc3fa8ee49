"""Times are exact to the nanosecond, whichever way the file writes them."""

import json
import random
from decimal import Decimal

import numpy as np
import pytest

from pytest_perfdl.trace import loads
from pytest_perfdl.trace.events import EXACT_BELOW_US, nanoseconds


def _read(*times: str) -> list[int]:
    """Start times of events whose `ts` is this text in the file."""
    events = ",".join(f'{{"ph":"X","name":"op","cat":"cpu_op","pid":1,"tid":1,"ts":{ts},"dur":1}}' for ts in times)
    return loads(f'{{"traceEvents":[{events}]}}'.encode()).start.tolist()


def test_relative_microseconds_with_three_decimals():
    draw = random.Random(1)
    nanos = [draw.randrange(EXACT_BELOW_US * 1000) for _ in range(20_000)]
    nanos += [0, 1, 999, EXACT_BELOW_US * 1000 - 1]
    assert _read(*(f"{ns // 1000}.{ns % 1000:03d}" for ns in nanos)) == nanos


def test_absolute_microseconds_with_three_decimals_do_not_lose_digits():
    draw = random.Random(2)
    nanos = [1_712_195_495_519_689_047 + draw.randrange(10**12) for _ in range(2000)]
    assert _read(*(f"{ns // 1000}.{ns % 1000:03d}" for ns in nanos)) == nanos
    assert float("1712195495519689.047") * 1000 != nanos[0], "float64 cannot hold it"


def test_whole_microseconds_of_older_files():
    assert _read("1695835542514261", "0", "7") == [1_695_835_542_514_261_000, 0, 7000]


def test_whole_and_fractional_mixed():
    assert _read("5", "6.001", "7.5") == [5000, 6001, 7500]


def test_text_and_exponents():
    assert _read('"1712195495519689.047"', '"12"', "1.5e3") == [1_712_195_495_519_689_047, 12_000, 1_500_000]


def test_one_event_of_another_kind_switches_the_whole_file_to_exact_times():
    assert _read("1712195495519689.047", "1712195495519690", "12.345") == [
        1_712_195_495_519_689_047,
        1_712_195_495_519_690_000,
        12_345,
    ]


@pytest.mark.parametrize("value", [None, "", "soon", float("nan"), float("inf"), 10**30, "nan", "1e400"])
def test_unusable_values(value):
    times, usable = nanoseconds([value, 1.5])
    assert times.tolist() == [0, 1500]
    assert usable.tolist() == [False, True]


def test_no_values():
    times, usable = nanoseconds([])
    assert times.dtype == np.int64
    assert len(times) == len(usable) == 0


def test_negative_times_are_kept():
    assert _read("-1.001", "-5") == [-1001, -5000]


def test_decimal_reference_on_a_recording():
    import gzip

    from pytest_perfdl.trace import read
    from unit.trace.chrome import DATA

    for path in sorted(DATA.glob("*.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
        complete = [event for event in events if event["ph"] == "X"]
        found = read(path)
        assert found.start.tolist() == [int(event["ts"] * 1000) for event in complete]
        assert found.duration.tolist() == [int(event["dur"] * 1000) for event in complete]


def test_an_event_lasts_a_year_at_most():
    """So that sums over many stay within 64 bits, whatever a damaged file says."""
    year = 2**55 // 1000
    text = json.dumps({"traceEvents": [{"ph": "X", "ts": 1, "dur": us} for us in (5, year, year + 1, 2**51)]})
    trace = loads(text.encode())
    assert trace.duration.tolist() == [5000, year * 1000, 0, 0]
    assert any("2 " in finding and "duration" in finding for finding in trace.findings)


def test_a_whole_number_beyond_all_floats_beside_a_fraction_is_no_time():
    found, usable = nanoseconds([1.5, 10**400])
    assert (found.tolist(), usable.tolist()) == ([1500, 0], [True, False])
