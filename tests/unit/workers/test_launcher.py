"""The ranks' door: only those that know the secret come in, and nobody keeps others out."""

import contextlib
import json
import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from plugin.project import until

from pytest_perfdl.model.errors import WorkerDied
from pytest_perfdl.model.launch import STORE, Launch
from pytest_perfdl.workers import launcher
from pytest_perfdl.workers.launcher import Doorway, RankLauncher
from pytest_perfdl.workers.process import environment
from pytest_perfdl.workers.rank import _connected
from pytest_perfdl.workers.rank_process import NONCE_BYTES, RankAddress, proof

SECRET = b"k" * 32


@pytest.fixture
def door():
    listener = socket.create_server(("127.0.0.1", 0))
    found = Doorway(listener, SECRET)
    yield found, listener.getsockname()
    found.close()


@pytest.fixture
def visit(door):
    """A function that connects to the door."""
    made = []

    def connect():
        made.append(socket.create_connection(door[1]))
        return made[-1]

    yield connect
    for each in made:
        each.close()


def admitted(door, rounds=100):
    for _ in range(rounds):
        if found := door.admit(0.05):
            return found
    return []


def rank(address, secret=SECRET):
    """A rank that connects in a thread; what becomes of it."""
    said = []

    def connect():
        try:
            said.append(_connected(RankAddress(address, secret.hex(), "")))
        except OSError as error:
            said.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    return thread, said


def comes_in(door, address):
    thread, said = rank(address)
    (connection,) = admitted(door)
    thread.join()
    connection.close()
    said[0].close()


def closed(connection):
    connection.settimeout(10)
    try:
        while connection.recv(100):
            pass
    except ConnectionError:
        pass
    return True


def test_a_rank_that_knows_the_secret_comes_in(door):
    found, address = door
    thread, said = rank(address)
    (connection,) = admitted(found)
    thread.join()
    with connection, said[0]:
        connection.sendall(b"job")
        assert said[0].recv(3) == b"job"
        assert connection.getblocking()


def test_strangers_that_send_nothing_or_a_byte_at_a_time_keep_nobody_out(door, visit):
    found, address = door
    _, slow = visit(), visit()
    assert admitted(found, 3) == []
    slow.sendall(b"x")
    comes_in(found, address)
    slow.sendall(b"x")
    assert admitted(found, 3) == []


def test_the_whole_proof_has_one_deadline_however_slowly_it_comes(door, visit, monkeypatch):
    found, _ = door
    monkeypatch.setattr(launcher, "_ANSWER_SECONDS", 0.0)
    slow = visit()
    assert not all(is_open_after_a_byte(found, slow) for _ in range(60))


def is_open_after_a_byte(door, connection):
    door.admit(0.01)
    try:
        connection.sendall(b"x")
    except OSError:
        return False
    return True


def test_of_many_strangers_the_oldest_go(door, visit, monkeypatch):
    found, address = door
    monkeypatch.setattr(launcher, "_ANSWER_SECONDS", 600.0)
    strangers = []
    for _ in range(launcher._MOST_STRANGERS + 3):
        strangers.append(visit())
        found.admit(1)
    assert all(closed(each) for each in strangers[:3])
    assert len(found._strangers) == launcher._MOST_STRANGERS
    comes_in(found, address)


@pytest.mark.parametrize("answer", ["another secret", "our own words", "too short"])
def test_who_does_not_know_the_secret_stays_out(door, visit, answer):
    found, address = door
    if answer == "another secret":
        thread, said = rank(address, b"x" * 32)
        assert admitted(found, 10) == []
        thread.join()
        assert isinstance(said[0], OSError)
        return
    stranger = visit()
    found.admit(1)
    nonce = stranger.recv(NONCE_BYTES)
    words = proof(SECRET, "launcher", nonce) if answer == "our own words" else b""
    stranger.sendall(words + b"n" * NONCE_BYTES)
    if answer == "too short":
        stranger.shutdown(socket.SHUT_WR)
    assert admitted(found, 10) == []
    assert closed(stranger)


def test_a_rank_tells_nothing_to_somebody_who_does_not_know_the_secret():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread, said = rank(listener.getsockname())
        with listener.accept()[0] as connection:
            connection.sendall(b"n" * NONCE_BYTES)
            connection.recv(1000)
            connection.sendall(b"p" * 32)
            thread.join()
    assert "is not the pytest that started this rank" in str(said[0])


NOTE = """#!/bin/sh
printf '%s\\n' "$@" > {folder}/words
env > {folder}/env-$RANK
"""


@pytest.fixture
def started(tmp_path):
    """A launcher whose processes note what they were told, and end."""

    def start(launch):
        program = tmp_path / "python"
        program.write_text(NOTE.format(folder=tmp_path))
        program.chmod(0o700)
        folder = tmp_path / "ranks"
        folder.mkdir()
        found = RankLauncher(
            2,
            launch,
            folder,
            executable=str(program),
            own_path=sys.path,
            import_path=sys.path,
            working_folder=None,
            variables=environment(1),
            inherit_output=False,
        )
        found.wait(60)
        found.kill()
        return tmp_path

    return start


def variables(path):
    return dict(line.partition("=")[::2] for line in path.read_text().splitlines() if "=" in line)


def test_ranks_of_one_machine_need_no_network(started):
    folder = started(Launch())
    for number in (0, 1):
        told = variables(folder / f"env-{number}")
        assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"]) == (str(number), str(number), "2")
        assert Path(told[STORE]) == folder / "ranks" / "store"
        assert told["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
        assert isinstance(json.loads(told[launcher.ADDRESS])["address"], str)
    assert "torch.distributed.run" not in (folder / "words").read_text()


def test_the_users_interface_stays(started, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert variables(started(Launch()) / "env-1")["GLOO_SOCKET_IFNAME"] == "eth7"


def test_a_launcher_on_one_machine_meets_in_a_file(started):
    folder = started(Launch(prefix=("env",)))
    words = (folder / "words").read_text()
    assert "--rdzv-conf=store_type=file" in words
    assert "--standalone" not in words
    # That machine may be another one.
    assert "GLOO_SOCKET_IFNAME" not in variables(folder / "env-")


@pytest.mark.long
@pytest.mark.parametrize("ends", [False, True], ids=["hangs", "ends"])
def test_a_rank_that_proves_itself_and_then_says_nothing_is_one_that_did_not_start(ends, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "START_SECONDS", 1.0)
    # In the place of Python: it lives until it is killed, and tells what it was told.
    tells = tmp_path / "tells"
    tells.write_text(
        f'#!/bin/sh\nprintf %s "${launcher.ADDRESS}" > {tmp_path}/told.$RANK\n'
        f"mv {tmp_path}/told.$RANK {tmp_path}/told\nexec sleep 600\n"
    )
    tells.chmod(0o755)
    found = RankLauncher(
        2,
        Launch(timeout=1.0),
        tmp_path,
        executable=str(tells),
        own_path=[],
        import_path=[],
        working_folder=None,
        variables=os.environ,
        inherit_output=False,
    )

    def rank():
        assert until((tmp_path / "told").exists)
        told = json.loads((tmp_path / "told").read_text())
        with _connected(RankAddress(told["address"], told["secret"], "")) as connection:
            if not ends:
                with contextlib.suppress(OSError):
                    connection.recv(1)

    thread = threading.Thread(target=rank, daemon=True)
    thread.start()
    try:
        with pytest.raises(WorkerDied, match=r"^0 of 2 ranks started within 1 s \(--perf-rank-timeout\)"):
            found.connect("", float("inf"))
    finally:
        found.kill()
    thread.join(60)
    assert not thread.is_alive()
