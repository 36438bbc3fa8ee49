"""The process from which workers are forked: it imports modules once, then forks on request.

It imports only third-party modules that the test's first processes have also imported, and this package. It has one
thread and no device, so that a fork is equivalent to a process that has just imported the same modules.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from pytest_perfdl.model.errors import ChannelClosed
from pytest_perfdl.model.units import plural
from pytest_perfdl.system.import_path import own_imports
from pytest_perfdl.workers import worker
from pytest_perfdl.workers.channel import Channel, Fork, Forked, LoadModules, ModulesLoaded, Reap, Reaped
from pytest_perfdl.workers.files_read import NOT_THE_TESTS, is_installed

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


def main(channel_fd: int, parent: int) -> None:
    """Serve the orchestrating process until it closes the channel.

    Parameters
    ----------
    channel_fd
        Descriptor of the channel's socket. Before every message comes one byte, with the descriptors that belong to it.
    parent
        Id of the orchestrating process.
    """
    connection = socket.socket(fileno=channel_fd)
    channel = Channel(connection)
    worker.die_with(parent)
    environment = dict(os.environ)
    try:
        while True:
            byte, descriptors, *_ = socket.recv_fds(connection, 1, 3)
            if not byte:
                break
            message = channel.receive()
            if isinstance(message, LoadModules):
                channel.send(ModulesLoaded(_load(message) or unfit()))
                # What is alive now is never garbage; and collecting would copy every page of it in every fork.
                gc.collect()
                gc.freeze()
            elif isinstance(message, Fork):
                channel.send(Forked(_fork(message, connection, descriptors, environment)))
            elif isinstance(message, Reap):
                channel.send(Reaped(os.waitstatus_to_exitcode(os.waitpid(message.pid, 0)[1])))
    except ChannelClosed:
        pass
    os._exit(0)


def _load(wanted: LoadModules) -> str:
    """Import modules; why these are not the test's, in one line, or nothing."""
    with own_imports():
        for name in wanted.preload:
            importlib.import_module(name)
    before, frozen = set(sys.modules), gc.get_freeze_count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, _ in wanted.modules:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                # Some packages put modules into sys.modules under names that cannot be imported.
                if error.name != name:
                    return f"{name} cannot be imported on its own: {error}"
            except BaseException as error:
                return f"{name} cannot be imported on its own: {type(error).__name__}: {error}"
    # What they froze could not be told from what is frozen here.
    if gc.get_freeze_count() > frozen:
        return "importing the test's modules freezes objects (gc.freeze)"
    for name, file in wanted.modules:
        found = getattr(sys.modules.get(name), "__file__", file)
        if found != file:
            return f"{name} is {file} in the test, but {found} when imported on its own"
    known = {*wanted.modules, *wanted.allowed}
    more = next((each for each in _loaded(set(sys.modules) - before) if each not in known), None)
    return f"importing the test's modules loads {more[0]}, which a normal run of the test does not load" if more else ""


def _loaded(names: set[str]) -> Iterator[tuple[str, str]]:
    """Those of some modules that are files and belong neither to Python nor to pytest."""
    library = tuple(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib"))
    for name in sorted(names):
        module, top = sys.modules[name], name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not Path(file).is_absolute() or getattr(module, "__name__", "") != name:
            continue
        of_python = file.startswith(library) and not is_installed(file)
        if not of_python and top not in NOT_THE_TESTS:
            yield name, file


def unfit() -> str:
    """Why this process cannot be forked, in one line, or nothing: more threads than one, or a device."""
    tasks = len(list(Path("/proc/self/task").iterdir()))
    if tasks != 1:
        return f"importing the test's modules starts {plural(tasks - 1, 'thread')}"
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:  # the descriptor of the folder itself
            continue
        if target.startswith(_DEVICES):
            return f"importing the test's modules opens {target}"
    return ""


def _fork(message: Fork, connection: socket.socket, descriptors: list[int], environment: dict[str, str]) -> int:
    """Fork a worker; its id."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    try:
        os.setsid()
        connection.close()
        channel, output, stacks = descriptors
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        os.chdir(message.folder)
        sys.path[:] = message.import_path
        importlib.invalidate_caches()
        # What the modules changed when they were imported stays.
        for name, value in message.environment.items():
            if environment.get(name) != value:
                os.environ[name] = value
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed()
        worker.main(channel, parent, stacks, forked=True)
    finally:
        os._exit(1)
