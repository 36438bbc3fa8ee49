"""The code of one rank: a worker that the elastic launcher of torch.distributed starts, and that connects back."""

from __future__ import annotations

import os
import socket
import sys
from multiprocessing.connection import Client
from pathlib import Path
from typing import NoReturn

from pytest_perfdl.system import folders
from pytest_perfdl.workers.channel import Channel
from pytest_perfdl.workers.rank_place import (
    Progress,
    RankAddress,
    RankPlace,
    RankReady,
    progress_path,
    stacks_path,
)
from pytest_perfdl.workers.worker import answer_signals, die_with, serve


def main(launcher: int) -> NoReturn:
    """Connect to the orchestrating process, and run the job that it sends.

    Parameters
    ----------
    launcher
        Process that started this one.
    """
    told = RankAddress.told()
    die_with(launcher)
    sys.path[:] = told.import_path
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with Client(told.address, authkey=bytes.fromhex(told.secret)) as connection:
        channel = Channel(socket.socket(fileno=os.dup(connection.fileno())))
    folder = Path(told.folder)
    if not folder.is_dir():  # on another machine
        folder = folders.temporary("rank").path
    # Stacks are written while the process runs, so the file stays open.
    answer_signals(os.open(stacks_path(folder, rank), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
    place = RankPlace(rank, Progress(progress_path(folder, rank)))
    channel.send(RankReady(rank, world_size, os.getpid(), socket.gethostname()))
    serve(channel, rank=place)
