"""The benchmark of many baselines, with few: that it still fits the functions that it times."""

import importlib.util
import sys
from pathlib import Path

PATH = Path(__file__).resolve().parents[3] / "benchmarks" / "baselines" / "many.py"
SPEC = importlib.util.spec_from_file_location("many_baselines", PATH)
many = sys.modules[SPEC.name] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(many)


def test_all_baselines_are_counted_and_have_an_estimate(tmp_path):
    root = tmp_path / "project"
    assert many.made(root, each_file=1) > 1000

    # It asserts that the line below pytest's header has their number, and that every test has an estimate.
    many.collecting(root, each_file=1)
    # And that the source of some tests was hashed.
    many.hashing(root)


def test_the_command_that_is_timed_lists_them(tmp_path):
    root = tmp_path / "project"
    many.made(root, each_file=1)

    # It asserts the exit code.
    many.least([sys.executable, "-m", "pytest_perfdl.cli", "list"], root, 1)
