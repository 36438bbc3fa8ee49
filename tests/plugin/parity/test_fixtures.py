import os
import warnings
from pathlib import Path

import pytest
from steps import Noted, Unpicklable, step

pytestmark = pytest.mark.perf


def test_monkeypatch(perf, monkeypatch):
    monkeypatch.setenv("SOMETHING", "set")
    perf(step)
    assert os.environ["SOMETHING"] == "set"


def test_tmp_path(perf, tmp_path, request):
    assert "SOMETHING" not in os.environ
    (tmp_path / "file").write_text("x")
    perf(step)
    assert tmp_path.name.startswith("test_tmp_path")
    assert os.environ["PYTEST_CURRENT_TEST"] == f"{request.node.nodeid} (call)"
    assert Path.cwd() == request.config.invocation_params.dir


def test_recwarn(perf, recwarn):
    warnings.warn("recorded", Noted, stacklevel=1)
    perf(step)
    assert [str(warning.message) for warning in recwarn.list] == ["recorded"]


def test_properties(perf, record_property):
    record_property("seed", 7)
    perf(step)
    record_property("note", "text")


def test_properties_of_failure(record_property):
    record_property("seed", 8)
    raise AssertionError("and now it fails")


@pytest.fixture
def warns():
    warnings.warn("from a fixture", DeprecationWarning, stacklevel=1)
    yield
    warnings.warn("from a teardown", Noted, stacklevel=1)


def test_warnings(perf, warns):
    warnings.warn("from a body", UserWarning, stacklevel=1)
    warnings.warn(Noted("an instance", 2), stacklevel=1)
    perf(step)


def test_warning_that_cannot_travel():
    warnings.warn(Unpicklable("has a callback"), stacklevel=1)
    raise AssertionError("and now it fails")


@pytest.mark.filterwarnings("error::steps.Noted")
def test_warning_as_error():
    warnings.warn("strict", Noted, stacklevel=1)


@pytest.mark.filterwarnings("ignore::steps.Noted")
def test_ignored_warning():
    warnings.warn("ignored", Noted, stacklevel=1)
    pytest.skip("after a warning")
