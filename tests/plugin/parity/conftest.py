"""Notes everything that pytest reports of the run, for test_parity.py to compare between kinds of run."""

import json
import os
import sys
from pathlib import Path

import pytest

REPORTS, WARNINGS = [], []


def pytest_runtest_logreport(report):
    context = getattr(report, "context", None)
    REPORTS.append(
        {
            "type": type(report).__name__,
            "nodeid": report.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "longrepr": str(report.longrepr) if report.skipped else report.longreprtext,
            "crash": str(getattr(getattr(report.longrepr, "reprcrash", None), "message", None)),
            "wasxfail": getattr(report, "wasxfail", None),
            "sections": report.sections,
            "properties": [list(pair) for pair in report.user_properties if not pair[0].startswith("perf.")],
            "location": list(report.location),
            "keywords": sorted(report.keywords),
            "subtest": [context.msg, dict(context.kwargs)] if context is not None else None,
        }
    )


def pytest_warning_recorded(warning_message, when, nodeid, location):
    WARNINGS.append(
        {
            "category": warning_message.category.__name__,
            "text": str(warning_message.message),
            "file": Path(warning_message.filename).name,
            "line": warning_message.lineno,
            "when": when,
            "nodeid": nodeid,
            "location": location,
        }
    )


def pytest_unconfigure():
    # Hooks of a conftest run in worker processes too.
    if "NOTES" in os.environ and "PYTEST_PERFDL_WORKER" not in os.environ:
        notes = {"reports": REPORTS, "warnings": WARNINGS, "torch": "torch" in sys.modules}
        Path(os.environ["NOTES"]).write_text(json.dumps(notes))


@pytest.fixture
def resource():
    print("resource built")
    yield "resource"
    print("resource released")


@pytest.fixture
def unavailable():
    pytest.skip("no such hardware")


@pytest.fixture
def broken():
    print("about to break")
    raise RuntimeError("the fixture is broken")


@pytest.fixture
def breaks_later():
    yield
    raise OSError("releasing went wrong")
