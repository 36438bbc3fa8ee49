"""What help texts and the documentation give as an example of an argument is understood."""

import argparse
import re
from pathlib import Path

import pytest

from pytest_perfdl.cli import _load, main
from unit.cli.test_trace import events
from unit.trace.chrome import text

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_EXAMPLE = re.compile(r"\b[a-z_0-9]+[=~][\w.:/-]*[\w/]")


def help_of(command, option):
    parser = argparse.ArgumentParser()
    _load(command).add_arguments(parser)
    return parser._option_string_actions[option].help


def examples(command, option):
    found = _EXAMPLE.findall(help_of(command, option))
    assert len(found) > 1
    return found


def documented(option):
    """What follows an option in the commands of the documentation."""
    given = re.compile(rf"{option}[ =](\'[^\']*\'|[^\s`|]+)")
    texts = [found.strip("'") for page in PAGES for found in given.findall(page.read_text(encoding="utf-8"))]
    return [
        text for text in dict.fromkeys(texts) if not text.isupper() and ":FACTOR" not in text and "KEY=" not in text
    ]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.json"
    path.write_bytes(text(events()))
    return str(path)


def refused(capsys, *arguments):
    """The line about arguments that are not understood; one about nothing being found is none."""
    code = main(list(arguments))
    err = capsys.readouterr().err
    found = "holds nothing of" in err or "selects no task" in err or "no operator of" in err
    return "" if code == 0 or found else err


@pytest.mark.parametrize("example", [*examples("trace", "--select"), *documented("--select")])
def test_selections_of_rows_and_steps(example, file, capsys):
    assert not refused(capsys, "trace", file, "--select", example)


def test_peaks(file, capsys):
    given = [word for example in examples("trace", "--peaks") for word in ("--peaks", example)]
    assert not refused(capsys, "trace", file, *given)


@pytest.mark.parametrize("example", examples("whatif", "--scale"))
def test_selections_of_tasks(example, file, capsys):
    assert not refused(capsys, "whatif", file, "--scale", f"{example}:0.5")
    assert not refused(capsys, "whatif", file, "--remove", example)


@pytest.mark.parametrize("option", ["--scale", "--remove"])
def test_documented_selections_of_tasks(option, file, capsys):
    found = documented(option)
    assert found
    for example in found:
        assert not refused(capsys, "whatif", file, option, example)


@pytest.mark.parametrize("example", examples("whatif", "--machine"))
def test_constants_of_a_machine(example, file, capsys):
    assert not refused(capsys, "whatif", file, "--machine", example)


def test_other_examples_of_help_texts(file, capsys):
    assert "amp:dtype=bfloat16" in help_of("whatif", "--apply")
    assert not refused(capsys, "whatif", file, "--apply", "amp:dtype=bfloat16")
    assert "41.2ms" in help_of("whatif", "--step-time")
    assert not refused(capsys, "whatif", file, "--step-time", "41.2ms")
    assert "regressed,missing" in help_of("diff", "--fail-on")
    assert not refused(capsys, "diff", file, file, "--fail-on", "regressed,missing")
