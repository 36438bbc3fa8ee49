"""Locks that processes of all users share: who holds one, who waits, and what is no lock file."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from plugin.project import until

from pytest_perfdl.system import device_lock
from pytest_perfdl.system.device_lock import DeviceLock, Wanted

HOST = (Wanted("host"),)
ON_GPU = [(Wanted("host", shared=True), Wanted(f"gpu-{number}")) for number in (0, 1)]


class Waits(Exception):
    """A run would have to wait."""


def refuse(_):
    raise Waits


def free(folder, wanted):
    """Whether a run would have these locks at once."""
    lock = DeviceLock(folder, wanted)
    try:
        lock.acquire(refuse)
    except Waits:
        return False
    finally:
        lock.release()
    assert not lock.problem
    return True


def held(folder, wanted):
    lock = DeviceLock(folder, wanted)
    lock.acquire(lambda _: pytest.fail("held by somebody"))
    return lock


def test_one_run_at_a_time_without_a_gpu(tmp_path):
    lock = held(tmp_path, HOST)
    lock.acquire(lambda _: pytest.fail("it is held already"))
    assert not free(tmp_path, HOST)
    lock.release()
    assert free(tmp_path, HOST)


def test_runs_on_different_gpus_do_not_wait_for_each_other(tmp_path):
    first = held(tmp_path, ON_GPU[0])
    assert free(tmp_path, ON_GPU[1])
    assert not free(tmp_path, ON_GPU[0])
    assert not free(tmp_path, HOST)
    second = held(tmp_path, ON_GPU[1])
    first.release()
    assert free(tmp_path, ON_GPU[0])
    assert not free(tmp_path, HOST)
    second.release()
    assert free(tmp_path, HOST)


HOLDS = """
import sys, time
from pathlib import Path
from pytest_perfdl.system.device_lock import DeviceLock, Wanted
lock = DeviceLock(Path(sys.argv[1]), [Wanted("host")])
lock.acquire(lambda holder: None)
print("held", flush=True)
time.sleep(600)
"""


def test_a_killed_holder_is_named_before_and_holds_nothing_after(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        said = []

        def waiting(pid):
            said.append(pid)
            holder.send_signal(signal.SIGKILL)

        lock = DeviceLock(tmp_path, HOST)
        lock.acquire(waiting)
        lock.release()
    assert said == [holder.pid if Path("/proc/locks").exists() else None]


def test_runs_alternate(tmp_path, monkeypatch):
    """Whoever releases a lock for which another waits gets it after the other."""
    monkeypatch.setattr(device_lock, "_LOOK_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(device_lock, "_SAY_EVERY_SECONDS", 0.0)
    had, both = [], threading.Barrier(2, timeout=60)

    def run(name):
        lock = DeviceLock(tmp_path, HOST)
        both.wait()
        for _ in range(5):
            lock.acquire(lambda _: None)
            had.append(name)
            # It measures until the other waits, if that has tests left.
            if len(had) < 10:
                until(lambda: not free_queue(tmp_path) or len(had) > 8, 20)
            lock.release()

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(had) == list("aaaaabbbbb")
    assert all(one != other for one, other in itertools.pairwise(had)), had


def free_queue(folder):
    return free(folder, (Wanted("host.queue"),))


def test_the_files_are_for_all_users_and_stay_empty(tmp_path):
    before = os.umask(0o077)
    try:
        held(tmp_path, HOST).release()
    finally:
        os.umask(before)
    files = list(tmp_path.iterdir())
    assert sorted(file.name for file in files) == ["pytest-perfdl-host.lock", "pytest-perfdl-host.queue.lock"]
    assert [(oct(file.stat().st_mode & 0o777), file.stat().st_size) for file in files] == [("0o444", 0)] * 2


def linked(path, victim):
    path.symlink_to(victim)


def pipe(path, _):
    os.mkfifo(path)


def folder(path, _):
    path.mkdir()


@pytest.mark.parametrize("put", [linked, pipe, folder])
def test_what_others_put_there_is_neither_followed_nor_changed(put, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    put(tmp_path / "pytest-perfdl-host.lock", victim)
    lock = DeviceLock(tmp_path, HOST)
    lock.acquire(lambda _: pytest.fail("nobody holds it"))
    assert "pytest-perfdl-host.lock: " in lock.problem
    assert len(lock.problem.splitlines()) == 1
    assert victim.read_text() == "mine"
    # What was locked on the way is free.
    assert free_queue(tmp_path)


def test_a_folder_that_is_gone_is_a_problem_and_no_error(tmp_path):
    lock = DeviceLock(tmp_path / "none", HOST)
    lock.acquire(lambda _: None)
    assert "No such file or directory" in lock.problem


def test_a_file_that_is_removed_before_it_is_locked_is_no_lock(tmp_path, monkeypatch):
    """Cleaners of temporary files remove what is old: whoever comes next would lock another file."""
    opened, removed = device_lock._opened, []

    def opened_and_removed(path):
        descriptor = opened(path)
        if path.name == "pytest-perfdl-host.lock" and not removed:
            removed.append(path.unlink())
        return descriptor

    monkeypatch.setattr(device_lock, "_opened", opened_and_removed)
    lock = held(tmp_path, HOST)
    assert removed
    assert not free(tmp_path, HOST)
    lock.release()


FORKS = """
import os, sys, time
from pathlib import Path
from pytest_perfdl.system.device_lock import DeviceLock, Wanted
lock = DeviceLock(Path(sys.argv[1]), [Wanted("host")])
lock.acquire(lambda holder: None)
child = os.fork()
if not child:
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    # What a daemon does at its end must not close a descriptor that is another file's by now.
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(9)]
    lock.release()
    print(all(os.fstat(each) for each in others), flush=True)
"""


def test_a_forked_child_keeps_no_lock(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FORKS, str(tmp_path)], **pipes) as holder:
        int(holder.stdout.readline())
        holder.wait()
        # The child lives until it is told to go on.
        assert free(tmp_path, HOST)
        assert holder.communicate(b"end\n") == (b"True\n", None)


WAITS = HOLDS.replace("lambda holder: None", "lambda holder: print('waits', flush=True)")


def test_a_stopped_process_in_the_queue_is_passed_by(tmp_path, monkeypatch):
    monkeypatch.setattr(device_lock, "_PASSED_BY_SECONDS", 0.0)
    lock = held(tmp_path, HOST)
    with subprocess.Popen([sys.executable, "-c", WAITS, str(tmp_path)], stdout=subprocess.PIPE) as stopped:
        try:
            assert stopped.stdout.readline() == b"waits\n"
            stopped.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
            lock.release()
            lock.acquire(lambda _: None)
            assert not lock.problem
            assert not free(tmp_path, HOST)
            lock.release()
        finally:
            stopped.send_signal(signal.SIGKILL)


def test_a_holder_that_does_not_end_is_waited_for_only_for_a_time(tmp_path, monkeypatch):
    holder, lock, waited = held(tmp_path, HOST), DeviceLock(tmp_path, HOST), []
    monkeypatch.setattr(device_lock, "LONGEST_WAIT_SECONDS", -1.0)
    lock.acquire(waited.append)
    who = f"PID {os.getpid()}" if Path("/proc/locks").exists() else "another process"
    path = tmp_path / "pytest-perfdl-host.lock"
    assert lock.problem == f"{path}: {who} has kept it for 0 min, the longest time that a run waits"
    # Later tests of the run do not wait as long again.
    lock.acquire(lambda _: pytest.fail("it waits again"))
    assert not waited
    holder.release()
    assert free(tmp_path, HOST)


def test_a_limit_of_waiting_is_for_one_holder(tmp_path, monkeypatch):
    """Where many runs take turns, each wait is short, although all of them together are long."""
    now, holders = itertools.count(0.0, 60.0), itertools.count()
    monkeypatch.setattr(device_lock.clocks, "monotonic", lambda: next(now))
    monkeypatch.setattr(device_lock.clocks, "sleep", lambda _: None)
    monkeypatch.setattr(device_lock, "_holder", lambda _: next(holders))
    holder, lock, waited = held(tmp_path, HOST), DeviceLock(tmp_path, HOST), []

    def waiting(pid):
        waited.append(pid)
        if len(waited) == 100:
            holder.release()

    lock.acquire(waiting)
    assert (lock.problem, len(waited)) == ("", 100)
    lock.release()
