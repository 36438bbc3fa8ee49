"""Whatever a file holds, what a command prints of it moves no cursor and gives no CI runner an order."""

import io
import json
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
from making import record, timed

from pytest_perfdl import cli
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.model.record import Key
from pytest_perfdl.report import write_all
from unit.report import runs

HOSTILE = "tests/t.py::test\x1b]0;PWNED\x07\x1b[2J\n::stop-commands::x##[add-mask]y"


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A project with one baseline whose every text is hostile."""
    monkeypatch.chdir(tmp_path)
    made = record({"block_time\x1b[2J": timed(5)}, test=HOSTILE, key=Key("key\x1b[2J", {}), context={"a\x1b[2J": "::b"})
    Store(tmp_path, "baselines").save(made, {})
    return made


def plain(printed):
    text = printed.out + printed.err
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "##[" not in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())
    return text


@pytest.mark.parametrize("arguments", [["list"], ["show", "tests"], ["show", "\x1b[2J"]])
def test_records_are_printed_as_plain_text(stored, arguments, capsys):
    cli.main(arguments)
    assert "x1b" in plain(capsys.readouterr())


def test_the_list_shows_the_step_time_of_history(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    times = {"block_time": timed(9e6, 9e6, 9e6), "step_time": timed(1e6, 2e6, 4e6 * 1.5**3)}
    Store(tmp_path, "baselines").save(record(times), {})
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[2].endswith("3.000 ms")


def test_a_wrong_call_is_printed_as_plain_text(capsys):
    with pytest.raises(SystemExit):
        cli.main(["list", "--\x1b[2J"])
    assert "unrecognized arguments: --\\x1b[2J" in plain(capsys.readouterr())


def test_an_accepted_test_is_printed_as_plain_text(stored, tmp_path, capsys):
    result = replace(runs.result("regressed", HOSTILE), new=stored)
    report = write_all(runs.run(result, report_dir=tmp_path / "report", root=tmp_path))
    capsys.readouterr()
    assert cli.main(["accept", str(report.json), "--all", "--dir", "others"]) == 0
    assert "accepted   tests/t.py::test\\x1b]0;" in plain(capsys.readouterr())


def test_an_error_is_printed_as_plain_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "a\x1b[2J.json").write_text(json.dumps({"schema": "\x1b[2J"}))
    assert cli.main(["list"]) == 2
    assert "a\\x1b[2J.json" in plain(capsys.readouterr())


def test_what_the_terminal_cannot_show_is_spelled(stored, tmp_path, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    made = replace(stored, test="tests/t.py::test[µ]")
    Store(tmp_path, "baselines").save(made, {})
    assert cli.main(["show", "test["]) == 0
    out.seek(0)
    assert "test[\\xb5]" in out.read()


def test_json_holds_no_order_for_a_runner(capsys):
    from pytest_perfdl.cli.common import print_json

    print_json({"name": "##[add-mask]x"})
    text = capsys.readouterr().out
    assert "##[" not in text
    assert json.loads(text) == {"name": "##[add-mask]x"}


@pytest.mark.parametrize("redirected", ["> /dev/full", ">&-", "> /dev/full 2>&-", ">&- 2>&-"])
def test_a_stdout_that_takes_nothing_is_an_error_of_the_command(stored, redirected):
    """Exit code 1 would say that something regressed."""
    command = f"{shlex.quote(sys.executable)} -m pytest_perfdl.cli list {redirected}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = "" if "2>" in redirected else "perfdl list: cannot write to stdout: "
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)


def test_a_stderr_that_takes_nothing_changes_no_exit_code(stored):
    command = f"{shlex.quote(sys.executable)} -m pytest_perfdl.cli show --dir nothing 2> /dev/full"
    assert subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False).returncode == 2
