import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_perfdl.model.errors import ReportError
from pytest_perfdl.report import markdown
from pytest_perfdl.report.github import SUMMARY_LIMIT, append_summary, workflow_commands
from pytest_perfdl.results.run import Suggestion
from unit.report import runs

COMMAND = re.compile(r"::(error|warning) (.*?)::(.*)")


def parsed(line):
    """What GitHub's runner makes of a line: properties and message, unescaped as actions/runner does."""
    kind, properties, message = COMMAND.fullmatch(line).groups()
    named = dict(part.split("=", 1) for part in properties.split(","))
    for code, char in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        named = {name: value.replace(code, char) for name, value in named.items()}
        if char not in ":,":
            message = message.replace(code, char)
    return kind, named, message


def test_an_annotation_of_a_regression():
    (line,) = workflow_commands(runs.run(runs.result("regressed")), {})
    kind, named, message = parsed(line)
    assert kind == "error"
    assert named == {"file": "tests/perf/test_gpt.py", "line": "12", "title": "perf +9.4% test_train_step[bf16]"}
    assert message.splitlines()[:2] == [
        "regressed: step_time is 9.4% slower than its baseline, unpaired",
        "step_time 41.20 -> 45.08 ms  +9.4%  95% interval [+8.9%, +9.9%]  limit 3%",
    ]
    assert "pytest --perf-update 'tests/perf/test_gpt.py::test_train_step[bf16]'" in message


def test_failing_and_warning_tests_are_told_apart():
    kinds = [parsed(line)[0] for line in workflow_commands(runs.run(*runs.each_verdict()), {})]
    assert kinds == ["error"] * 4 + ["warning"] * 5


def test_nothing_can_break_out_of_an_annotation():
    lines = workflow_commands(runs.run(runs.hostile()), {})
    evil = runs.result(reason="a\r\n::error::b%0A", test="tests/a,b:c%.py::test_x,line=1::x")
    lines += workflow_commands(runs.run(evil), {})
    assert all("\n" not in line and "\r" not in line for line in lines)
    _, named, message = parsed(lines[-1])
    assert named["file"] == "tests/a,b:c%.py"
    assert set(named) == {"file", "line", "title"}
    assert "a\\r\\n::error::b%0A" in message


@pytest.mark.parametrize("number, lines, last", [(9, 9, None), (10, 10, "and 1 more"), (41, 10, "and 32 more")])
def test_at_most_nine_and_a_line_for_the_rest(number, lines, last):
    found = workflow_commands(runs.run(*(runs.result("missing", f"t.py::test_{index}") for index in range(number))), {})
    assert len(found) == lines
    assert last is None or last in parsed(found[-1])[2]


def test_files_are_named_from_the_checkout():
    run = runs.run(runs.result("missing"), root=Path("/home/runner/work/repo/python"))
    (line,) = workflow_commands(run, {"GITHUB_WORKSPACE": "/home/runner/work/repo"})
    assert parsed(line)[1]["file"] == "python/tests/perf/test_gpt.py"
    (line,) = workflow_commands(run, {"GITHUB_WORKSPACE": "/elsewhere"})
    assert parsed(line)[1]["file"] == "tests/perf/test_gpt.py"


def test_the_step_summary_is_appended_within_what_is_left(tmp_path):
    path = tmp_path / "summary.md"
    path.write_text("x" * 100)
    asked = []
    assert append_summary(lambda limit: asked.append(limit) or "# perf µ\n", {"GITHUB_STEP_SUMMARY": str(path)})
    assert asked == [SUMMARY_LIMIT - 100]
    assert path.read_text(encoding="utf-8") == "x" * 100 + "# perf µ\n"


def test_outside_github_nothing_is_appended():
    assert append_summary(lambda limit: str(limit), {}) is False


def test_a_step_summary_that_cannot_be_written(tmp_path):
    with pytest.raises(ReportError, match=r"the step summary .* cannot be written"):
        append_summary(str, {"GITHUB_STEP_SUMMARY": str(tmp_path)})


def test_the_markdown_summary_says_the_verdict_first():
    text = markdown.summary(runs.run(*runs.each_verdict()))
    lines = text.splitlines()
    assert lines[0] == "<!-- perfdl -->"
    assert lines[1] == "### 4 of 13 perf tests fail: 1 invalid, 1 regressed, 1 missing, 1 outdated"
    opened = [line for line in lines if line.startswith("#### ")]
    assert [line.split()[1] for line in opened] == ["invalid:", "regressed:", "missing:", "outdated:"]
    folded = re.findall(r"<details><summary>(\w+): <code>", text)
    assert folded == ["waived", "suspect", "changed", "inconclusive", "incomparable", "improved"]
    assert text.count("<details>") == text.count("</details>") == 7, "six folded tests, and the rows of one"
    name = "`step_time` (lower quartile of step times)"
    assert f"| {name} | 41.20 ms | 45.08 ms | +9.4% | [+8.9%, +9.9%] | 3% | **regressed** |" in lines
    assert "- context differs: `torch` `2.12.0` → `2.13.0` (2 tests)" in lines
    assert "\npytest --perf-update 'tests/perf/test_gpt.py::test_train_step[bf16]'  # accept the change\n```\n" in text


def test_the_markdown_summary_has_the_first_suggestion():
    advised = (Suggestion("slow", f"do {runs.HOSTILE}", 0.123, (0.1, 0.15)), Suggestion("a", "another advice", 0.05))
    shown = markdown.summary(runs.run(replace(runs.result("regressed"), suggestions=advised)))
    (line,) = [line for line in shown.splitlines() if line.startswith("Advice: ")]
    assert line == f"Advice: {markdown.code(advised[0].how)}, predicted gain 12.3% of the step [10.0%, 15.0%]."
    assert "another advice" not in shown


def test_every_table_row_has_the_columns_of_its_header():
    text = markdown.summary(runs.run(*runs.each_verdict(), runs.hostile()))
    columns = 0
    for line in text.splitlines():
        cells = len(re.split(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not columns or cells in (columns, 0), line
        columns = cells
    assert "`" in text


def test_hostile_names_stay_inside_code():
    text = markdown.summary(runs.run(runs.hostile()))
    outside = re.sub(r"(`{3,})(sh|diff)\n.*?\n\1(?!`)", "", text, flags=re.DOTALL)
    outside = re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", outside)
    for part in ("<img", "</script>", "@octocat", "{{7*7}}", "\u202e", "\x1b"):
        assert part not in outside
    assert (
        "<img"
        not in markdown.summary(runs.run(runs.result("suspect", f"t.py::test[{runs.HOSTILE}]", metrics=()))).split(
            "```sh"
        )[0]
    )


@pytest.mark.parametrize("name, span", [("a", "`a`"), ("a`b", "``a`b``"), ("`a``", "``` `a`` ```"), ("a|b", "`a|b`")])
def test_code_spans(name, span):
    assert markdown.code(name) == span


@pytest.mark.parametrize("limit", [0, 100, 1000, 2500, 5000, 20_000, 10**6])
def test_the_summary_keeps_within_its_limit_and_whole_tests(limit):
    tests = [runs.result("regressed", f"tests/test_é.py::test_{number}", blame=runs.BLAME) for number in range(30)]
    text = markdown.summary(runs.run(*tests), limit)
    assert len(text.encode()) <= limit
    shown = text.count("#### regressed")
    assert text.count("# measure again") == shown
    if text and limit >= 2500:
        # What is not whole is a line, and what has no line is counted.
        left = 30 - shown - text.count("\n- regressed ")
        assert left == 0 or f"{left} tests left out here" in text


@pytest.mark.long
def test_a_thousand_regressions_fit_githubs_limit():
    tests = [runs.result("regressed", f"t.py::test_{number}", blame=runs.BLAME) for number in range(1000)]
    size = len(markdown.summary(runs.run(*tests)).encode())
    assert SUMMARY_LIMIT - 3000 < size <= SUMMARY_LIMIT


def test_a_cause_says_where_it_is():
    text = markdown.summary(runs.run(runs.result(blame=[runs.PLACED, runs.cause("aten::add")])))
    assert "| `aten::mm`<br>launch-bound | `GPT.blocks.0.mlp`<br>`train.py:12 in step` | operator |" in text
    assert "| `aten::add` |  | operator |" in text


def test_times_of_several_tests_are_summed_up_as_a_table():
    faster = runs.timed(base=10_000_000, new=9_000_000, verdict="improved")
    two = [runs.result(metrics=[runs.timed()]), runs.result("improved", "t.py::b", metrics=[faster])]
    text = markdown.summary(runs.run(*two))
    assert "| step_time | mean | range | count |" in text
    assert "| slower | +9.4% | [+9.4%, +9.4%] | 1 |" in text
    assert "| all changed tests | -0.3% | [-10.0%, +9.4%] | 2 |" in text
    assert "| step_time | mean" not in markdown.summary(runs.run(two[0]))


def test_shares_of_a_step_that_did_not_change_have_no_rest():
    """As a damaged file may have them."""
    same = runs.cause("aten::mm", (1, 100), (1, 100), 0.5)
    text = markdown.summary(runs.run(runs.result(blame=(same,))))
    assert "everything else" not in text
    assert "aten::mm" in text
