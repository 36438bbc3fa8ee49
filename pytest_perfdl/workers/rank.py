"""The code of one rank: a worker that connects back to the orchestrating process."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from pathlib import Path
from typing import NoReturn

from pytest_perfdl.system import folders
from pytest_perfdl.workers.channel import Channel
from pytest_perfdl.workers.rank_process import (
    NONCE_BYTES,
    Progress,
    RankAddress,
    RankPlace,
    RankReady,
    progress_path,
    proof,
    stacks_path,
)
from pytest_perfdl.workers.worker import answer_signals, die_with, serve


def main(launcher: int) -> NoReturn:
    """Connect to the orchestrating process, and run the job that it sends.

    Parameters
    ----------
    launcher
        Process that started this one: the launcher, or the orchestrating process.
    """
    told = RankAddress.told()
    die_with(launcher)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    channel = Channel(_connected(told))
    folder = Path(told.folder)
    if not folder.is_dir():  # on another machine
        folder = folders.temporary("rank").path
    # Stacks are written while the process runs, so the file stays open.
    answer_signals(os.open(stacks_path(folder, rank), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
    place = RankPlace(rank, Progress(progress_path(folder, rank)))
    channel.send(RankReady(rank, world_size, os.getpid(), socket.gethostname()))
    serve(channel, rank=place)


def _connected(told: RankAddress) -> socket.socket:
    """A connection to the orchestrating process, after both sides have proved that they know the secret.

    Raises
    ------
    ConnectionError
        Somebody else answers.
    """
    secret = bytes.fromhex(told.secret)
    if isinstance(told.address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(told.address)
    else:
        connection = socket.create_connection(told.address)
    own = secrets.token_bytes(NONCE_BYTES)
    wanted = proof(secret, "launcher", own)
    try:
        connection.sendall(proof(secret, "rank", _exactly(connection, NONCE_BYTES)) + own)
        if not hmac.compare_digest(_exactly(connection, len(wanted)), wanted):
            raise ConnectionError(f"what answers at {told.address} is not the pytest that started this rank")
    except BaseException:
        connection.close()
        raise
    return connection


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the connection to pytest was closed: another process took too long to answer")
        data += chunk
    return data
