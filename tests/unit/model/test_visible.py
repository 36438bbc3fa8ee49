"""What is printed of other people's text: it can be read, and does nothing else."""

import pytest

from pytest_perfdl.model.failures import PerfRegression
from pytest_perfdl.model.visible import harmless, visible
from pytest_perfdl.report.terminal import summary_lines
from unit.report import runs


@pytest.mark.parametrize(
    "text, shown",
    [
        ("tests/test_a.py::test[::x]", "tests/test_a.py::test[::x]"),
        ("::error::x", "\\::error::x"),
        ("  \t::stop-commands::x", "  \\t::stop-commands::x"),
        ("\u00a0 ::add-mask::x", "\u00a0 \\::add-mask::x"),
        ("kernel ##[add-mask]x", "kernel #\\#[add-mask]x"),
        ("a\r::error::x", "a\\r::error::x"),
        ("one\n::error::x\n", "one\n\\::error::x\n"),
        ("\x1b]0;PWNED\x07\x1b[2J", "\\x1b]0;PWNED\\x07\\x1b[2J"),
        ("## Call CompiledFxGraph f ##", "## Call CompiledFxGraph f ##"),
        ("Größe 5 µs", "Größe 5 µs"),
    ],
)
def test_a_printed_line_is_no_command(text, shown):
    assert harmless(text) == shown
    assert harmless(shown) == shown


def test_a_name_stays_on_its_line():
    assert visible("a\n::error::x\u2028b") == "a\\n::error::x\\u2028b"


def test_neither_the_summary_nor_a_failure_begins_a_line_with_a_command():
    hostile = runs.result("regressed", "t.py::test_a", reason="::stop-commands::x")
    lines = [line.text for line in summary_lines(runs.run(hostile), 0, 60)]
    lines += str(PerfRegression("regressed:\n  ::stop-commands::x\x1b[2J")).splitlines()
    assert any("stop-commands" in line for line in lines)
    assert not any(line.lstrip().startswith("::") or "\x1b" in line for line in lines)
