"""What the documentation quotes is what the code says and the program prints today."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def script(name):
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


REFERENCE, SAMPLES = script("reference"), script("samples")


@pytest.mark.parametrize("name", REFERENCE.PAGES)
def test_a_reference_page_is_what_the_code_says(name):
    assert (REFERENCE.FOLDER / name).read_text(encoding="utf-8") == REFERENCE.made(name), "run python docs/reference.py"


def test_every_table_of_the_reference_has_rows():
    for name in REFERENCE.PAGES:
        for table in re.findall(r"(?:^\|.*\n)+", REFERENCE.made(name), re.MULTILINE):
            assert table.count("\n") > 2, f"{name}: {table}"
    commands = REFERENCE.made("commands.md")
    assert "### `perfdl scaling predict`" in commands
    assert "| `--at NAME=VALUE,...` |" in commands
    assert "| `POINTS` |" in commands


@pytest.mark.parametrize("name", SAMPLES.FILES)
def test_samples_are_what_the_program_prints(name):
    text = (SAMPLES.ROOT / name).read_text(encoding="utf-8")
    assert SAMPLES.rewritten(text) == text, "run python docs/samples.py"


def test_every_metric_of_a_run_is_described():
    described = {*REFERENCE.TIMES, *REFERENCE.COUNTS, "throughput"}
    run = json.loads(SAMPLES.RUN.read_text(encoding="utf-8"))
    assert {name for test in run["tests"] for name in test["metrics"] if " " not in name} <= described


def test_every_picture_of_the_documentation_is_there():
    for page in DOCS.rglob("*.md"):
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.split(")")[0]
            if target.endswith(".png"):
                assert (page.parent / target).is_file(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_links_stay_in_the_documentation(page):
    """The strict build refuses others; it is not installed wherever the tests run."""
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        found = (page.parent / target).resolve()
        assert found.exists(), target
        assert found.is_relative_to(DOCS), target
