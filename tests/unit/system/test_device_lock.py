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
