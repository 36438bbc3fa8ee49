"""Processes that end with this one."""

import os
import signal
import subprocess
import sys

import pytest
from plugin.project import alive, until

from pytest_perfdl.system import processes

PARENT = """
import sys
from pathlib import Path
from pytest_perfdl.system import processes
if sys.argv[1:] == ["lose the guard"]:
    processes.run(["true"], Path(), seconds=60, environment={})
    processes._guard._process.kill()
    processes._guard._process.wait()
processes.run(
    ["/bin/sh", "-c", "trap '' HUP INT TERM; sleep 600 & echo $$ $! > pids; wait"], Path(), seconds=600, environment={}
)
"""


def run(script, folder, *, seconds=60.0, **environment):
    return processes.run(["/bin/sh", "-c", script], folder, seconds=seconds, environment=environment)


def note(path):
    return until(lambda: path.is_file() and path.read_text().endswith("\n") and path.read_text().split())


def test_what_a_command_says_and_how_it_ends(tmp_path):
    done = run("pwd; echo $WORD; echo wrong >&2; exit 3", tmp_path, WORD="hello")
    assert (done.code, done.output.decode(), done.errors) == (3, f"{tmp_path}\nhello\n", b"wrong\n")


def test_a_command_has_no_input_and_no_terminal(tmp_path):
    assert run("cat; (: </dev/tty) 2>/dev/null && echo terminal", tmp_path).output == b""


def test_what_a_command_leaves_running_is_ended(tmp_path):
    done = run("sleep 600 & echo $! > pids", tmp_path)
    assert done.code == 0
    until(lambda: not alive(note(tmp_path / "pids")[0]))


def test_a_command_that_takes_too_long_is_ended_whole(tmp_path):
    with pytest.raises(subprocess.TimeoutExpired):
        run("trap '' TERM; sleep 600 & echo $$ $! > pids; wait", tmp_path, seconds=1)
    until(lambda: not any(map(alive, note(tmp_path / "pids"))))


def test_a_command_that_is_not_there(tmp_path):
    done = processes.run(["no-such-command"], tmp_path, seconds=60, environment=dict(os.environ))
    assert done.code == 127


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("guard", ["keep the guard", "lose the guard"])
def test_a_command_ends_with_this_process_however_that_ends(tmp_path, number, guard):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, guard],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # Where these tests run in the background, they ignore it, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    pids = note(tmp_path / "pids")
    parent.send_signal(number)
    parent.wait(60)
    until(lambda: not any(map(alive, pids)))


FORKS = """
import os, sys
from pathlib import Path
from pytest_perfdl.system import processes
processes.guard(int(sys.argv[1]))
if not os.fork():
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    # It has a guard of its own, and its end is not that of its parent's groups.
    processes.run(["true"], Path(), seconds=60, environment={})
    sys.exit()
exec(sys.argv[2])
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_a_forked_child_keeps_no_guard_waiting(end):
    """At its end this process waits for the guard, which waits for the other end of its pipe."""
    guarded = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-W", "error", "-c", FORKS, str(guarded.pid), end], **pipes) as parent:
        child = int(parent.stdout.readline())
        parent.wait(60)
        assert alive(child)
        guarded.wait(60)
        assert parent.communicate(b"end\n") == (b"", b"")


class Stuck:
    """A process that the system does not let end."""

    pid = 2**22 + 1

    def wait(self, timeout=None):
        assert timeout is not None
        raise subprocess.TimeoutExpired("stuck", timeout)


def test_a_killed_process_that_does_not_end_is_not_waited_for_for_ever(capsys):
    processes.end_and_wait(Stuck())
    said = capsys.readouterr().err
    assert said.startswith(f"pytest-perfdl: process {Stuck.pid} was killed, but did not end within 30 s: it is stuck")
    assert len(said.splitlines()) == 1
