"""Ranks that connect to their launcher, or only seem to."""

import contextlib
import json
import os
import socket
import threading
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

import pytest
from plugin.project import until

from pytest_perfdl.model.errors import WorkerDied
from pytest_perfdl.model.launch import Launch
from pytest_perfdl.workers import launcher
from pytest_perfdl.workers.launcher import ADDRESS, RankLauncher


@pytest.mark.parametrize("ends", [False, True], ids=["hangs", "ends"])
def test_a_rank_that_proves_itself_and_then_says_nothing_is_one_that_did_not_start(ends, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "START_SECONDS", 1.0)
    # In the place of torch's launcher: it lives until it is killed, and tells what it was told.
    tells = tmp_path / "tells"
    tells.write_text(
        f'#!/bin/sh\nprintf %s "${ADDRESS}" > {tmp_path}/told.new && mv {tmp_path}/told.new {tmp_path}/told\n'
        "exec sleep 600\n"
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
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(told["address"])
            with Connection(os.dup(connection.fileno())) as peer:
                answer_challenge(peer, bytes.fromhex(told["secret"]))
                deliver_challenge(peer, bytes.fromhex(told["secret"]))
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
