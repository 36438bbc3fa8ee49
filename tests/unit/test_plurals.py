"""Counts agree with their nouns: one place in the code knows how."""

import re
from pathlib import Path

import pytest_perfdl
from pytest_perfdl.model.units import plural
from pytest_perfdl.report import markdown
from pytest_perfdl.report.terminal import summary_lines
from unit.report import runs

_BY_HAND = re.compile(r"""['"]e?s['"] (\*|if)|else ['"]e?s['"]|\} (baseline|repeat|process|trace|event|round)(e?s)\b""")
_COUNTED = re.compile(r"\{[^{}]*(count|len|number|repeats|unlinked|total)[^{}]*$")
_KNOWN = {
    # Sizes of a plan or of arguments, never 1 where they are told; and errors of programs, not of people.
    "judge/round_data.py",
    "judge/budget.py",
    "run/scaling_curves/compared.py",
}


def test_numbers_with_their_nouns():
    assert plural(0, "test") == "0 tests"
    assert plural(1, "process", "processes") == "1 process"
    assert plural(2000, "process", "processes") == "2,000 processes"


def test_no_plural_is_made_by_hand():
    root = Path(pytest_perfdl.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            match = _BY_HAND.search(line)
            by_hand = match is not None and (not match[2] or _COUNTED.search(line[: match.start()]))
            if by_hand and name not in _KNOWN and not line.lstrip().startswith(("#", '"""')):
                found.append(f"{name}:{number}: {line.strip()}")
    assert not found, "pytest_perfdl.model.units.plural says it"


def test_scripts_ask_for_one_too():
    """A count in a page's text has its noun's ending in an expression, or a number that is never 1 beside it."""
    by_hand = re.compile(r"\$\{[^{}]*(length|repeats|count)[^{}]*\} (repeat|process|test|round|step|row)e?s\b")
    root = Path(pytest_perfdl.__file__).parent / "report" / "templates"
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(root.glob("*.js"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if by_hand.search(line) and "=== 1 ?" not in line
    ]
    assert not found


def test_a_run_of_one_of_everything():
    one = runs.record("t.py::test_a", repeats=1)
    run = runs.run(runs.result("unchanged", "t.py::test_a", new=one, base=one, updated=True))
    said = "\n".join([*(line.text for line in summary_lines(run, 2, 100)), markdown.summary(run)])
    assert not re.search(r"\b1 (baselines|tests|repeats|processes|rounds|kernels)\b", said)
    assert "1 baseline recorded" in said
    assert "1 process against 1" in said
