"""The generated traces beside this file are what their script makes, and hold what a device's trace has."""

import gzip
import runpy

import pytest

from pytest_perfdl.analysis.ranks import ranks
from pytest_perfdl.trace import Category, read
from unit.trace.chrome import DATA

NAMES = ("device_cuda", "device_rocm", "device_rank0", "device_rank1")


def test_the_script_makes_the_files_that_are_there(tmp_path):
    script = runpy.run_path(str(DATA / "generate.py"))
    script["write"].__globals__["HERE"] = tmp_path
    script["main"]()
    for name in NAMES:
        made, there = (gzip.decompress((folder / f"{name}.json.gz").read_bytes()) for folder in (tmp_path, DATA))
        assert made == there


@pytest.mark.parametrize("name", NAMES)
def test_they_have_events_of_every_sort_that_analyses_ask_for(name):
    found = read(DATA / f"{name}.json.gz")
    for category in (
        Category.CPU_OP,
        Category.USER_ANNOTATION,
        Category.PYTHON_FUNCTION,
        Category.CUDA_RUNTIME,
        Category.KERNEL,
        Category.GPU_MEMCPY,
    ):
        assert len(found.rows(category))
    assert len(found.memory)
    assert found.findings == ()


def test_the_collectives_of_both_ranks_are_matched():
    found = ranks([read(DATA / f"device_rank{number}.json.gz") for number in (0, 1)])
    assert [each.rank for each in found.ranks] == [0, 1]
    assert (len(found.collectives), found.unmatched) == (6, 0)
