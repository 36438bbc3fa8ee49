"""`perfdl check`: what is printed, and with which code it ends."""

import io
import json

import pytest

from pytest_perfdl.cli import check, main
from pytest_perfdl.machine.fitness import MachineFinding, Place
from pytest_perfdl.system import device_lock
from pytest_perfdl.system.device_lock import DeviceLock, Wanted

FINDINGS = (
    MachineFinding(
        "bad", "load now", "other processes use 1.9 of 2 CPUs", "other processes preempt the step", "ps -p 12"
    ),
    MachineFinding("warn", "frequency", "governor powersave", "the clock depends on the load", "sudo cpupower"),
    MachineFinding("note", "turbo", "on", "it depends on temperature"),
    MachineFinding("ok", "clock", "tsc"),
)


@pytest.fixture(autouse=True)
def unlocked(monkeypatch):
    """What else measures on this machine must not delay these tests."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "--perf-device-lock=off")


@pytest.fixture
def found(monkeypatch):
    """Findings to give, and what `examine` was asked for."""
    given = {"findings": FINDINGS, "timed": None}

    def examine(place, *, timed):
        given["timed"] = timed
        given["place"] = place
        return given["findings"]

    monkeypatch.setattr(check, "examine", examine)
    return given


def test_the_page(found, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "this machine is not fit to measure on: 1 bad, 1 warning, 1 note, 1 ok (-v lists all checks)",
        "bad   load now: other processes use 1.9 of 2 CPUs: other",
        "      processes preempt the step",
        "      do: ps -p 12",
        "warn  frequency: governor powersave: the clock depends on",
        "      the load",
        "      do: sudo cpupower",
        "note  turbo: on: it depends on temperature",
    ]
    assert main(["check", "-v"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == (
        "this machine is not fit to measure on: 1 bad, 1 warning, 1 note, 1 ok",
        "ok    clock: tsc",
    )


@pytest.mark.parametrize(
    "arguments, findings, code, words",
    [
        ([], FINDINGS, 1, "this machine is not fit to measure on: 1 bad"),
        ([], FINDINGS[1:], 0, "this machine is fit to measure on: 1 warning"),
        (["--strict"], FINDINGS[1:], 1, "this machine is not fit to measure on: 1 warning"),
        (["--strict"], FINDINGS[2:], 0, "this machine is fit to measure on: 1 note"),
        ([], (*FINDINGS[2:], *FINDINGS[2:]), 0, "this machine is fit to measure on: 2 notes, 2 ok"),
    ],
    ids=["bad", "warning", "strict-warning", "strict-note", "many"],
)
def test_exit_codes(found, capsys, arguments, findings, code, words):
    found["findings"] = findings
    assert main(["check", *arguments]) == code
    assert capsys.readouterr().out.splitlines()[0].startswith(words)


def test_wrong_usage_ends_with_2(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", "--no-such-option"])
    assert ended.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


@pytest.mark.long
def test_versions_with_known_problems_have_their_source_and_a_remedy(capsys, monkeypatch, tmp_path):
    packages = {"torch": "2.8.0+rocm7.2"}
    here = Place({}, {}, tmp_path, root=tmp_path, run=lambda command: None, installed=packages.get)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(check, "_here", lambda: here)
    assert main(["check", "--quick", "--strict"]) == 1
    lines = capsys.readouterr().out.splitlines()
    said = lines.index(
        "warn  versions: ROCm 7.2: some or all kernels can be missing from a profile "
        "(https://github.com/ROCm/legacy-rocm-build/issues/6102)"
    )
    assert lines[said + 1] == "      do: install ROCm 7.2.2 or later, and a torch build that uses its ROCTracer"
    packages["torch"] = "2.8.0+rocm7.2.2"
    main(["check", "--quick", "-v"])
    assert "ok    versions: torch 2.8.0+rocm7.2.2, ROCm 7.2.2: no known problems" in capsys.readouterr().out


def test_findings_as_data(found, capsys):
    assert main(["check", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["fit"] is False
    assert data["findings"][0] == {
        "level": "bad",
        "topic": "load now",
        "found": "other processes use 1.9 of 2 CPUs",
        "why": "other processes preempt the step",
        "do": "ps -p 12",
    }
    assert len(data["findings"]) == 4


@pytest.mark.parametrize("arguments, timed", [([], True), (["--quick"], False)], ids=["whole", "quick"])
def test_quick_leaves_out_the_timed_part(found, arguments, timed):
    main(["check", *arguments])
    assert found["timed"] is timed
    assert found["place"].worker_environment["OMP_NUM_THREADS"] == "1"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    "stream, variables, colored",
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
    ids=["terminal", "no-color", "dumb", "file"],
)
def test_color_only_on_a_terminal_that_wants_it(found, monkeypatch, stream, variables, colored):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", stream)
    main(["check"])
    assert ("\033[" in stream.getvalue()) is colored


def test_it_waits_for_a_run_that_measures_and_keeps_others_waiting(found, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTEST_ADDOPTS", f"--perf-device-lock={tmp_path}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run, held = DeviceLock(tmp_path, [Wanted("host")]), []
    run.acquire(lambda holder: None)
    monkeypatch.setattr(device_lock.clocks, "sleep", lambda seconds: run.release())

    def examine(place, *, timed):
        with pytest.raises(Held):
            DeviceLock(tmp_path, [Wanted("host")]).acquire(refuse)
        held.append(timed)
        return FINDINGS

    monkeypatch.setattr(check, "examine", examine)
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    assert main(["check"]) == 1
    printed = capsys.readouterr()
    assert held == [True]
    assert printed.err.startswith("waiting for another run of pytest-perfdl on this machine")
    assert printed.err.count("\n") == 1
    DeviceLock(tmp_path, [Wanted("host")]).acquire(refuse)


def test_what_is_not_timed_waits_for_nobody(found, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTEST_ADDOPTS", f"--perf-device-lock={tmp_path}")
    main(["check", "--quick"])
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_lock_folder_is_one_line(found, capsys, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--perf-device-lock=locks")
    assert main(["check"]) == 2
    assert capsys.readouterr().err == (
        "perfdl check: perf_device_lock = 'locks': expected auto, off or the absolute path of a folder\n"
    )


class Held(Exception):
    """The lock is held."""


def refuse(_):
    raise Held
