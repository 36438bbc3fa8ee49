"""Outputs in documents: what is compared, what is left out, and what writing renews."""

import pytest
from commands.printed import leaves_out, renewed

OUTPUT = (
    "F        [100%]",
    "",
    "REGRESSED  test_speed.py::test_step",
    "    step_time 4.185 -> 20.20 ms +383% [+382%, +384%], limit 60%; also ops",
    "    cause: test_speed.py:7: more calls",
    "1 failed in 61.25s (0:01:01)",
)


@pytest.mark.parametrize(
    "shown",
    [
        OUTPUT,
        (*OUTPUT[:2], "", *OUTPUT[2:]),
        (*OUTPUT[:3], "    step_time 940.0 -> 1,020 µs +8.5% [+8.1%, +8.9%], limit 3%; also ops", *OUTPUT[4:]),
        (*OUTPUT[:4], "    cause: longer waiting", "1 failed in 9.2s"),
        ("...", "REGRESSED  test_speed.py::test_step", "..."),
        ("...", "REGRESSED  test_speed.py::test_step", "...", "1 failed in 2s"),
        ("...", "    step_time 1.1 -> 2 ms +7% ...", "    cause: none", "..."),
        ("...", *OUTPUT, "..."),
    ],
)
def test_what_is_the_same_output(shown):
    assert renewed(shown, OUTPUT) is not None


@pytest.mark.parametrize(
    "shown",
    [
        (),
        OUTPUT[:-1],
        OUTPUT[1:3],
        (*OUTPUT[:5], "1 passed in 61.25s (0:01:01)"),
        ("REGRESSED  test_speed.py::test_step", "..."),
        ("...", "REGRESSED  test_speed.py::test_step"),
        ("...", "REGRESSED  test_speed.py::test_another", "..."),
        # Another order, and a line that is left out without a word.
        ("...", OUTPUT[4], "...", OUTPUT[2], "..."),
        ("...", OUTPUT[2], OUTPUT[4], "..."),
        ("...", "    step_time 1.1 -> 2 ms", "..."),
    ],
)
def test_what_is_another_output(shown):
    assert renewed(shown, OUTPUT) is None


def test_writing_renews_what_is_shown_and_keeps_what_is_left_out():
    test, step_time = "REGRESSED  test_speed.py::test_step", "    step_time 1.1 -> 2 ms +7% ..."
    shown = ("...", test, step_time, "...", "", "1 failed in 2s")
    assert renewed(shown, OUTPUT) == (
        "...",
        test,
        "    step_time 4.185 -> 20.20 ms +383% ...",
        "...",
        "",
        "1 failed in 61.25s (0:01:01)",
    )


def test_a_path_that_git_shortens_leaves_nothing_out():
    assert not leaves_out((" .../tests/test_step.json | 10 +++---", "see above...", ""))
    assert leaves_out((" ...",))
    assert leaves_out(("    step_time ...",))
