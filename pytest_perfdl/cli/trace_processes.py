"""Traces that several processes read at once; apart from `traces`, since one trace needs no `multiprocessing`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess

from pytest_perfdl.cli.common import rewrite
from pytest_perfdl.cli.traces import ReadRank, text_bytes
from pytest_perfdl.model.errors import CommandError, PerfdlError
from pytest_perfdl.model.units import plural


def read_in_processes(
    files: Sequence[str], processes: int, read_one: Callable[[str], list[ReadRank]]
) -> list[list[ReadRank]]:
    """Read the files, so many at a time, in the order of their sizes, the largest first.

    A process reads one file and ends, so that its memory goes back. The first problem ends all of them, and so does an
    interrupt; none outlives this call.

    Raises
    ------
    PerfdlError
        A file cannot be used, or the process that read it was killed; the message is one line.
    """
    context = _context()
    left = sorted(range(len(files)), key=lambda place: text_bytes(files[place]))
    running: dict[Connection, tuple[BaseProcess, int]] = {}
    found: dict[int, list[ReadRank]] = {}
    shows = sys.stderr.isatty()
    try:
        while left or running:
            while left and len(running) < processes:
                place = left.pop()
                receiver, sender = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(
                    target=_answer, args=(sender, read_one, files[place]), daemon=True
                )
                with _uninterrupted():
                    process.start()
                    running[receiver] = process, place
                sender.close()
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                process, place = running[ready]
                found[place] = _receive(ready, process, files[place])
                del running[ready]
                process.join()
                if shows:
                    rewrite(f"reading {plural(len(files), 'trace')}: {len(found) / len(files):.0%}")
    finally:
        for receiver, (process, _) in running.items():
            process.terminate()
            process.join()
            receiver.close()
        if shows:
            rewrite("")
    return [found[place] for place in range(len(files))]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Has an interrupt wait for the end of the block: within, nobody would know of a process that has begun.

    A blocked signal would go to another thread, such as those of numpy, and interrupt this one all the same.
    """
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(signal.SIGINT, None)


def _context() -> ForkServerContext | SpawnContext:
    """How processes start: never as copies of this one, whose threads they would not have."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["pytest_perfdl.cli.traces", "pytest_perfdl.analysis.overview.summary", "pytest_perfdl.analysis.ranks"]
    )
    # Both are `python -c`, which puts the current folder first on `sys.path`: started in this one, they find the
    # library's modules. The processes that are asked for later go to this process's folder.
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(os.sep)
        resource_tracker.ensure_running()
        forkserver.ensure_running()
    finally:
        os.fchdir(here)
        os.close(here)
    return context


def _receive(receiver: Connection, process: BaseProcess, file: str) -> list[ReadRank]:
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else "ended"
        raise CommandError(
            f"{file}: the process that read it {how}, perhaps because memory ran out: give fewer files at a time"
        ) from None
    finally:
        receiver.close()
    if isinstance(answer, list):
        return answer
    raise answer


def _answer(sender: Connection, read_one: Callable[[str], list[ReadRank]], file: str) -> None:
    """Read one file and send what is said of it, or what is wrong; an interrupt is for the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer: list[ReadRank] | Exception = read_one(file)
    except PerfdlError as error:
        answer = type(error)(str(error))
    except (MemoryError, RecursionError, OverflowError) as error:
        answer = type(error)(f"{file}: {error}")
    with suppress(BrokenPipeError), sender:
        sender.send(answer)
