"""A few damaged files of each kind, the same every time: no traceback, one line, nothing written elsewhere.

`benchmarks/fuzz/run.py` looks at as many as there is time for.
"""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "fuzz"))

import damaged_files


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = damaged_files.Place(tmp_path_factory.mktemp("damaged"))
        patch.chdir(made.folder)
        made.prepare()
        yield made


@pytest.mark.long
@pytest.mark.parametrize("kind", damaged_files.CHECKS)
@settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(draw=st.randoms(use_true_random=False))
def test_whatever_reads_a_damaged_file_ends_as_foreseen(place, kind, draw):
    assert damaged_files.check(place, damaged_files.case_of(kind, place, draw)) in ("read", "refused")


@pytest.mark.parametrize("kind", damaged_files.CHECKS)
def test_the_files_that_are_damaged_are_read_whole(place, kind, monkeypatch):
    monkeypatch.setattr(damaged_files, "mutated", lambda data, _: data)
    monkeypatch.setattr(damaged_files, "mutate", lambda data, *_: data)
    assert damaged_files.check(place, damaged_files.case_of(kind, place, damaged_files.random.Random(0))) == "read"
