"""The waiver file: what it may say, and what is refused with the file and the entry."""

import random
import re
from pathlib import Path

import pytest

from pytest_perfdl.config.options import WAIVERS
from pytest_perfdl.config.waivers import LIMIT, MOST, OFF, parse, read
from pytest_perfdl.model.errors import InputError
from pytest_perfdl.model.waivers import waivers_for

WHOLE = """
[[waiver]]
test = "tests/test_gpt.py::test_step[bf16]"
metric = "step_time"
limit = "12%"
until = 2026-12-01
why = "new attention"
who = "ana"
"""
EVERY = WHOLE.replace('metric = "step_time"\n', "")


def refused(text, name=WAIVERS):
    with pytest.raises(InputError) as found:
        parse(text if isinstance(text, bytes) else text.encode(), name)
    message = str(found.value)
    assert "\n" not in message
    assert len(message) < 500
    assert message.startswith(name)
    return message


def test_the_example_of_the_documentation_is_valid():
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "waivers.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"(?s)```toml\n(.*?)```", text)
    (waiver,) = parse(example.encode(), WAIVERS)
    assert waiver.matches("tests/test_gpt.py::test_train_step[bf16]")
    for limit in ("5%+20us", "3"):
        parse(example.replace("12%", limit).replace("step_time", "mine").encode(), WAIVERS)


def test_an_entry_as_written():
    (waiver,) = parse(WHOLE.encode(), WAIVERS)
    assert waiver.content == (
        "tests/test_gpt.py::test_step[bf16]",
        "step_time",
        "12%",
        "2026-12-01",
        "new attention",
        "ana",
    )
    (every,) = parse(EVERY.encode(), WAIVERS)
    assert every.metric == ""
    assert every.covers("peak_memory")
    assert every.covers("forward.step_time")
    assert parse(b"", WAIVERS) == ()


@pytest.mark.parametrize(
    "test, matches",
    [
        ("tests/test_gpt.py::test_step[bf16]", True),
        ("tests/test_gpt.py::*", True),
        ("tests/*::test_step[bf*]", True),
        ("tests/test_gpt.py::test_step", False),
        ("tests/test_gpt.py::test_step[fp32]", False),
        ("*[bf16]", True),
        ("*", True),
        ("tests/*", True),
        ("tests/**", True),
        ("**/test_gpt.py::*", True),
        ("tests/**/test_gpt.py::*", True),
        ("tests?test_gpt.py::*", False),
        ("*.py::*", False),
        ("test_gpt.py::*", False),
        ("*::test_step*", False),
        ("**::test_step*", True),
        ("tests", False),
    ],
)
def test_a_test_is_a_node_id_or_a_pattern(test, matches):
    (waiver,) = parse(WHOLE.replace("tests/test_gpt.py::test_step[bf16]", test).encode(), WAIVERS)
    assert waiver.matches("tests/test_gpt.py::test_step[bf16]") is matches


DEEP = "tests/slow/deep/test_x.py::TestIt::test_step[a/b]"


@pytest.mark.parametrize(
    "test, matches",
    [
        ("tests/*", False),
        ("tests/*.py::*", False),
        ("tests/*/test_x.py::*", False),
        ("tests/*/*/test_x.py::*", True),
        ("tests/**", True),
        ("tests/**/*.py::*[a/*]", True),
        ("tests/**/test_x.py::*[a*b]", True),
        ("**/deep/**::TestIt::*", True),
        ("tests/**/nowhere/**", False),
        ("**/" * 200 + "x", False),
        ("*[a/*]", False),
    ],
)
def test_a_star_stays_in_its_folder_and_parameters_have_none(test, matches):
    (waiver,) = parse(WHOLE.replace("tests/test_gpt.py::test_step[bf16]", test).encode(), WAIVERS)
    assert waiver.matches(DEEP) is matches


@pytest.mark.parametrize("turn", [1, -1])
def test_a_node_id_wins_over_patterns_in_either_order(turn):
    star, other = "tests/t.py::test_a[a*b]", "tests/t.py::test_a[aXXb]"
    entries = [WHOLE.replace("tests/test_gpt.py::test_step[bf16]", test) for test in (star, "tests/*", other)]
    found = parse("".join(entries[::turn]).encode(), WAIVERS)

    def of(test, tests=(star, other)):
        return [each.test for each in waivers_for(test, found, tests)]

    assert of(star) == [star, "tests/*"]
    assert of(other) == [other, "tests/*"], "the node id of another test is no pattern"
    assert sorted(of("tests/t.py::test_a[ab]", ())) == ["tests/*", star]


@pytest.mark.parametrize(
    "metric, name, covers",
    [
        ("step_time", "step_time", True),
        ("step_time", "forward.step_time", True),
        ("forward.step_time", "forward.step_time", True),
        ("forward.step_time", "backward.step_time", False),
        ("step_time", "block_time", False),
    ],
)
def test_a_metric_is_named_as_in_limits(metric, name, covers):
    (waiver,) = parse(WHOLE.replace('"step_time"', f'"{metric}"').encode(), WAIVERS)
    assert waiver.covers(name) is covers


@pytest.mark.parametrize("key", ["test", "limit", "until", "why", "who"])
def test_what_an_entry_must_have(key):
    lines = [line for line in WHOLE.splitlines() if not line.startswith(key)]
    assert f"waiver 1: has no {key}: expected" in refused("\n".join(lines))


@pytest.mark.parametrize(
    "change, message",
    [
        (('"12%"', '"wide"'), "'wide' is not a valid limit: write it as 3%"),
        (('"12%"', '"off"'), "limit is off"),
        (('"12%"', "12"), "limit is not a text"),
        (('"12%"', '""'), "limit is not a text, or is empty"),
        (('"12%"', '"2MiB"'), "limit of step_time"),
        (("2026-12-01", '"2026-12-01"'), "until is not a date: expected a date without quotes"),
        (("2026-12-01", "2026-12-01T10:00:00"), "until is not a date"),
        (("2026-12-01", "2026-13-01"), "(at line 6, column "),
        (('"ana"', '"   "'), "who is not a text, or is empty"),
        (('who = "ana"', 'owner = "ana"'), "unknown key owner: the keys are test, limit"),
        (("[[waiver]]", "[[waivers]]"), "unknown table or key waivers: write every waiver as [[waiver]]"),
        (("[[waiver]]", "[waiver]"), "waiver is not a list of tables"),
        (('"new attention"', f'"{"x" * 2000}"'), "why is longer than 1000 characters"),
        (("[[waiver]]", "[[waiver]"), "is not valid TOML"),
        (('"12%"', '"10000000%"'), "limit 10000000% is more than 100000%: expected how much worse"),
        (("2026-12-01", "9999-12-31"), "until is more than 100 years from now"),
        (('"step_time"', '"*"'), "metric * is not the name of a metric: leave metric out to cover every metric"),
        (('"step_time"', '"forward.?"'), "metric forward.? is not the name of a metric"),
    ],
)
def test_a_bad_entry_is_one_line_with_file_and_entry(change, message):
    assert message in refused(WHOLE.replace(*change))


def test_the_number_of_the_entry_is_said():
    assert "waiver 2: has no who" in refused(WHOLE + WHOLE.replace('who = "ana"', ""))


@pytest.mark.parametrize("limit", ["20us", "+3%", "3%+1MiB"])
def test_without_a_metric_a_limit_is_a_percentage(limit):
    message = refused(EVERY.replace("12%", limit))
    assert "add metric" in message or "limit of step_time" in message


def test_size_and_number_are_bounded(tmp_path):
    assert "larger than 256 KiB" in refused(b"#" * (LIMIT + 1))
    # As short as entries can be, so many fit into the file.
    entry = '[[waiver]]\ntest="*"\nlimit="1%"\nuntil=2026-12-01\nwhy="x"\nwho="y"\n'
    assert f"at most {MOST} are allowed" in refused(entry * (MOST + 1))
    assert len(parse((entry * MOST).encode(), WAIVERS)) == MOST
    (tmp_path / WAIVERS).write_bytes(b"#" * (LIMIT + 1))
    with pytest.raises(InputError, match="it is larger than 256 KiB"):
        read(tmp_path, WAIVERS)


def test_nesting_and_bytes_that_are_no_text_are_refused():
    assert "is not valid TOML" in refused("a = " + "[" * 100_000)
    assert "is not valid TOML" in refused(b"\xff\xfe\x00")


def test_texts_cannot_move_the_cursor():
    (waiver,) = parse(WHOLE.replace("new attention", "a\\u001b[31m\\n\\nb\\u202e").encode(), WAIVERS)
    assert waiver.why == "a\\x1b[31m b\\u202e"


def test_the_default_file_may_be_absent_and_another_not(tmp_path):
    assert read(tmp_path, WAIVERS) == ()
    assert read(tmp_path, OFF) == ()
    with pytest.raises(InputError, match=r"other.toml is not a file: create it, or change perf_waivers"):
        read(tmp_path, "other.toml")


def test_the_file_is_below_the_root(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside.toml"
    root.mkdir()
    outside.write_text(WHOLE)
    (root / "link.toml").symlink_to(outside)
    for name in ("../outside.toml", str(outside), "link.toml"):
        with pytest.raises(InputError, match="must be in the root directory"):
            read(root, name)
    (root / WAIVERS).mkdir()
    with pytest.raises(InputError, match="is not a file"):
        read(root, WAIVERS)


def test_damaged_files_are_refused_or_read_but_never_crash():
    """200 files, each the documented one with some bytes changed."""
    draw = random.Random(5)
    messages = []
    for _ in range(200):
        data = bytearray(WHOLE.encode() * 2)
        for _ in range(draw.randint(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            parse(bytes(data), WAIVERS)
        except InputError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)
