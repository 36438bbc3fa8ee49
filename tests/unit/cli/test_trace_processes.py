"""Many traces in parallel processes: the same answers, one line for what is wrong, no process left."""

import gzip
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from pytest_perfdl.cli import main, traces
from pytest_perfdl.cli.trace_processes import read_in_processes
from pytest_perfdl.cli.traces import in_processes, read_ranks, text_bytes
from pytest_perfdl.machine import proc
from pytest_perfdl.model.errors import CommandError, TraceError
from pytest_perfdl.model.selection import parse
from unit.trace.chrome import DATA, text

PAIR = [str(DATA / f"gloo_rank{number}.json.gz") for number in range(2)]
ONE = partial(read_ranks, selection=parse([]), peaks=None)


@pytest.fixture
def always(monkeypatch):
    """However small the files are."""
    monkeypatch.setattr(traces, "WORTH", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(proc, "free_bytes", lambda: None)


def numbers(capsys, *arguments):
    assert main(["trace", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_processes_say_what_one_says(capsys, always, monkeypatch):
    found = numbers(capsys, *PAIR)
    monkeypatch.setattr(traces, "WORTH", 2**60)
    assert numbers(capsys, *PAIR) == found
    ranks = found["ranks"]
    assert ranks["count"] == 2
    assert [each["rank"] for each in found["traces"]] == [0, 1]
    assert len(ranks["waits"]) == len(ranks["waits"][0]) == len(ranks["overlap"]) == 2
    assert ranks["waits"][0][0] == ranks["waits"][1][1] == 0
    assert ranks["unmatched"] == 0
    # DDP makes two buckets of four layers of 128 x 128 weights and 128 biases.
    assert sum(each["bytes"] for each in ranks["buckets"]) == 4 * 4 * 129 * 128
    assert [each["steps"] for each in ranks["buckets"]] == [4, 4]


def test_ranks_come_in_the_order_of_the_files(always):
    found = read_in_processes([PAIR[1], PAIR[0]], 2, ONE)
    assert [each.rank for (each,) in found] == [1, 0]
    assert multiprocessing.active_children() == []


def test_a_selected_rank(capsys, always):
    found = numbers(capsys, *PAIR, "--select", "rank=1")
    assert found["rank"] == 1
    assert main(["trace", *PAIR, "--select", "rank=7"]) == 2
    assert "nothing in the job is selected: the ranks of the job are 0, 1" in capsys.readouterr().err


def test_a_broken_file_among_many_is_one_line(tmp_path, capsys, always):
    broken = tmp_path / "broken.json"
    broken.write_text("no trace")
    assert main(["trace", *PAIR, str(broken)]) == 2
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0
    assert str(broken) in error
    assert multiprocessing.active_children() == []
    with pytest.raises(TraceError, match="cannot be read"):
        read_in_processes([*PAIR, str(tmp_path / "absent.json")], 2, ONE)


def kill_myself(file):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_named_with_its_file(always):
    with pytest.raises(CommandError, match=r"gloo_rank.*was killed by signal 9, perhaps because memory ran out"):
        read_in_processes(PAIR, 2, kill_myself)
    assert multiprocessing.active_children() == []


def test_how_many_processes(tmp_path, monkeypatch):
    files = []
    for number in range(3):
        files.append(str(tmp_path / f"{number}.json"))
        (tmp_path / f"{number}.json").write_bytes(b" " * 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(proc, "free_bytes", lambda: None)
    assert in_processes(files) == 1, "not worth it"
    monkeypatch.setattr(traces, "WORTH", 3000)
    assert in_processes(files) == 3
    assert in_processes(files[:1]) == 1
    per_process = traces.PROCESS_BYTES + 1000 * traces.PER_BYTE
    monkeypatch.setattr(proc, "free_bytes", lambda: int(2.5 * per_process / traces.MEMORY_SHARE))
    assert in_processes(files) == 2
    monkeypatch.setattr(proc, "free_bytes", lambda: 0)
    assert in_processes(files) == 1


def test_the_size_of_the_text(tmp_path):
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(b"[" + b" " * 100_000 + b"]"))
    assert text_bytes(str(packed)) == 100_002
    plain = tmp_path / "a.json"
    plain.write_bytes(b"{}")
    assert text_bytes(str(plain)) == 2
    assert text_bytes(str(tmp_path / "absent")) == 0


SLEEPS = r"""
import os, signal, sys, time
from pytest_perfdl.cli import trace_processes

def sleeps(file):
    os.write(1, b"reading\n")  # at once: print writes the end of the line apart where Python does not buffer
    time.sleep(600)

if __name__ == "__main__":
    # A shell has what it runs in the background ignore interrupts, and so the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    {before}
    try:
        trace_processes.read_in_processes(sys.argv[1:], 2, sleeps)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def sleeping(folder, before=""):
    """A process that reads three files by processes that sleep; `before` runs first."""
    script = folder / "sleeps.py"
    script.write_text(SLEEPS.replace("{before}", before))
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(text([]))
    command = [sys.executable, str(script), *(str(folder / name) for name in ("a", "b", "c"))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def check_interrupted(process):
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, b"")
    for _ in range(600):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("a process is left")


@pytest.mark.long
def test_an_interrupt_ends_all_processes(tmp_path):
    process = sleeping(tmp_path)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"reading\n"] * 2
    os.killpg(process.pid, signal.SIGINT)
    check_interrupted(process)


STARTING = """
    from multiprocessing import forkserver
    read = forkserver.read_signed

    def interrupted(descriptor):
        forkserver.read_signed = read
        os.kill(os.getpid(), signal.SIGINT)
        return read(descriptor)

    forkserver.read_signed = interrupted
"""


@pytest.mark.long
def test_an_interrupt_while_a_process_starts_ends_it_too(tmp_path):
    """Its number is not known yet, but it runs."""
    check_interrupted(sleeping(tmp_path, STARTING.strip()))
