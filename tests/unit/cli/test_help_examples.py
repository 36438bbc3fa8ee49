"""What help texts and the documentation give as an example of an argument is understood."""

import argparse
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.cli import EXAMPLES, _load, main
from pytest_perfdl.machine.fitness import MachineFinding
from pytest_perfdl.model.shard import Shard
from pytest_perfdl.report import write_all
from unit.cli.test_trace import events
from unit.report import runs
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
    found = "is selected: " in err or "matches nothing" in err or "no operator of" in err
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


COMMANDS = {name: shlex.split(example) for name, example in EXAMPLES.items()}
SLOW = {
    "qualify": "runs a suite for hours",
    "bisect": "needs a repository, and measures for minutes",
    "constants": "measures for 20 s, and needs torch",
}
"""Examples that are only parsed."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with everything that the examples of `perfdl --help` name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("pytest_perfdl.cli.check.examine", lambda place, timed: (MachineFinding("ok", "clock", "tsc"),))
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    monkeypatch.setattr("pytest_perfdl.cli.view.OneFile.serve_until_fetched", lambda server: None)
    monkeypatch.setattr("pytest_perfdl.cli.view.PORT", 0)
    for name in ("trace.json.gz", "before.json.gz", "after.json.gz"):
        Path(name).write_bytes(text(events()))
    Path("points.csv").write_bytes((ROOT / "tests" / "data" / "points.csv").read_bytes())
    test = "tests/test_speed.py::test_train_step"
    new, base = (runs.record(test, repeats=10) for _ in range(2))
    Store(tmp_path, "baselines").save(base, {})
    author = ("-c", "user.name=Author", "-c", "user.email=author@example.org")
    for words in (
        ("init", "-q"),
        (*author, "commit", "-q", "--allow-empty", "-m", "Begin"),
        ("update-ref", "refs/remotes/origin/main", "HEAD"),
        ("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main"),
        (*author, "commit", "-q", "--allow-empty", "-m", "Change"),
    ):
        subprocess.run(["git", *words], check=True)
    write_all(
        replace(runs.run(runs.result("regressed", test, new=new, base=base)), report_dir=tmp_path / "perf-report")
    )
    for index in (1, 2):
        result = runs.result("unchanged", f"tests/test_speed.py::test_{index}")
        write_all(runs.run(result, report_dir=tmp_path / "shards" / str(index), shard=Shard(index, 2, tests=2)))
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_commands_work(name, project, capsys):
    assert COMMANDS[name][:2] == ["perfdl", name]
    if name in SLOW:
        parser = argparse.ArgumentParser()
        _load(name).add_arguments(parser)
        parser.parse_args(COMMANDS[name][2:])
        return
    # Without a test of its own every baseline would go: `prune` refuses that.
    code = main(COMMANDS[name][1:])
    said = capsys.readouterr()
    expected = 2 if name == "prune" else 0
    assert code == expected, said
    if name == "prune":
        assert "would delete the only baseline: add --all" in said.err


def test_the_commands_are_in_groups_with_examples(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith("usage: perfdl [-h] [--version] COMMAND ...\n")
    titles = re.findall(r"^(\S.*):$", out, re.MULTILINE)
    assert titles == ["options", "Tests and baselines", "Traces", "Machine", "Scaling"]
    assert [line.removeprefix("$ ") for line in map(str.strip, out.splitlines()) if line.startswith("$ ")] == list(
        EXAMPLES.values()
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_help_of_a_command(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert f"example: {EXAMPLES[name]}\n" in out
    assert ("--dir" in out) == (
        name in {"list", "show", "accept", "prune", "refresh", "history", "diff", "check", "qualify", "constants"}
    )
    parser = argparse.ArgumentParser()
    _load(name).add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == [] or name in ("baseline", "ci", "scaling")
