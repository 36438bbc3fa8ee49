"""What users import from `pytest_perfdl` itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_perfdl

DOCS = Path(__file__).resolve().parents[2] / "docs"
TRACE = Path(__file__).resolve().parents[1] / "data" / "mixer.json.gz"


@pytest.mark.parametrize("name", pytest_perfdl.__all__)
def test_every_public_name_is_there(name):
    assert getattr(pytest_perfdl, name).__name__ in (name, "read")
    assert name in dir(pytest_perfdl)


def test_there_is_no_other_name():
    with pytest.raises(AttributeError, match="has no attribute 'Machines'"):
        pytest_perfdl.Machines  # noqa: B018


def test_documents_import_public_names_only():
    for page in DOCS.rglob("*.md"):
        for module, names in re.findall(r"^from (pytest_perfdl[\w.]*) import (.+)$", page.read_text(), re.MULTILINE):
            assert module == "pytest_perfdl", page
            assert set(names.split(", ")) <= set(pytest_perfdl.__all__), page


def test_importing_the_package_loads_none_of_it():
    """pytest does that at every start."""
    loaded = "[name for name in sys.modules if name.startswith(('pytest_perfdl.', 'numpy'))]"
    code = f"import sys, pytest_perfdl; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [["--help"], ["trace", str(TRACE)], ["trace", str(TRACE), "--json"]])
def test_a_command_loads_nothing_of_others(arguments):
    """Reading a small trace takes as long as its imports."""
    others = ("torch", "pytest", "jinja2", *(f"pytest_perfdl.{name}" for name in ("judge", "diff", "results", "run")))
    code = (
        f"import sys; from pytest_perfdl.cli import main\ntry:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print('loaded', sorted(set({others!r}) & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"
