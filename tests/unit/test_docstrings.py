"""Examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import pytest_perfdl

ROOT = Path(pytest_perfdl.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_hold(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed
