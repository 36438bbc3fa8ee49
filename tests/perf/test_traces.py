"""Our own perf tests: the project is its own first user.

pytest --perf tests/perf
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_perfdl.analysis import profile_tables
from pytest_perfdl.trace import exemplar, loads, read

RECORDING = Path(__file__).parents[1] / "unit" / "trace" / "data" / "train.json.gz"

pytestmark = pytest.mark.perf


def test_read(perf):
    data = RECORDING.read_bytes()
    trace = perf(loads, data, items=len(data))
    assert len(trace) > 100


def test_account(perf):
    trace = read(RECORDING)
    tables = perf(profile_tables, trace, items=len(trace))
    assert sum(tables.account.values()) == sum(tables.step_ns)


def test_exemplar(perf):
    trace = read(RECORDING)
    picture = perf(exemplar, trace, 0)
    assert len(loads(picture)) > 10
