"""The process from which workers are forked: it imports modules once, then forks on request.

It imports this package, pytest's plugins, and third-party modules: for rounds those that the test's first processes
have also imported, for first processes those of an earlier test or run, which must be the test's in the end. It has one
thread and neither a device nor a connection of these modules, so that a fork is equivalent to a process that has just
imported the same modules.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import socket
import sys
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from pytest_perfdl.model.errors import ChannelClosed
from pytest_perfdl.model.units import plural
from pytest_perfdl.system.import_path import own_imports
from pytest_perfdl.system.pytest_internals import import_plugins
from pytest_perfdl.workers import worker
from pytest_perfdl.workers.channel import Channel, Fork, Forked, LoadModules, ModulesLoaded, Reap, Reaped
from pytest_perfdl.workers.files_read import NOT_THE_TESTS, is_of_python

_GIVEN = NOT_THE_TESTS | sys.stdlib_module_names
"""Names of modules that are none of a test's."""
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
_SHARED = ("socket:", "pipe:", "anon_inode:[eventpoll]")
"""What two processes cannot use beside each other: event loops and connections."""


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
                groups: dict[str, tuple[str, ...]] = {}
                before = _open()
                problem = _load(message, groups) or unfit(before)
                loaded = tuple(_loaded({name for group in groups.values() for name in group}))
                files = dict(loaded)
                roots = tuple((name, files[name]) for name in groups if name in files)
                channel.send(ModulesLoaded(problem, loaded, roots))
                # What is alive now is never garbage; and collecting would copy every page of it in every fork.
                gc.collect()
                gc.freeze()
            elif isinstance(message, Fork):
                channel.send(Forked(_fork(message, connection, descriptors, environment, groups)))
            elif isinstance(message, Reap):
                channel.send(Reaped(os.waitstatus_to_exitcode(os.waitpid(message.pid, 0)[1])))
    except ChannelClosed:
        pass
    os._exit(0)


def _load(wanted: LoadModules, groups: dict[str, tuple[str, ...]]) -> str:
    """Import modules; why these are not the test's, in one line, or nothing.

    `groups` gets what each import loaded, by the module that was imported, which is the first of them.
    """
    with own_imports():
        for name in wanted.preload:
            importlib.import_module(name)
    import_plugins(wanted.plugins.modules, wanted.plugins.rewritten)
    before, frozen = set(sys.modules), gc.get_freeze_count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in dict.fromkeys(each for one, _ in wanted.modules for each in _with_packages(one)):
            known = set(sys.modules)
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                # Some packages put modules into sys.modules under names that cannot be imported.
                if error.name != name:
                    return f"{name} cannot be imported on its own: {error}"
            except BaseException as error:
                return f"{name} cannot be imported on its own: {type(error).__name__}: {error}"
            if name in sys.modules and name not in known:
                more = (each for each in sys.modules if each not in known and each.partition(".")[0] not in _GIVEN)
                groups[name] = (name, *(each for each in more if each != name))
    # What they froze could not be told from what is frozen here.
    if gc.get_freeze_count() > frozen:
        return "importing the test's modules freezes objects (gc.freeze)"
    for name, file in wanted.modules:
        found = getattr(sys.modules.get(name), "__file__", file)
        if found != file:
            return f"{name} is {file} in the test, but {found} when imported on its own"
    if wanted.allowed is None:
        return ""
    expected = {*wanted.modules, *wanted.allowed}
    odd = next((each for each in _loaded(set(sys.modules) - before) if each not in expected), None)
    return f"importing the test's modules loads {odd[0]}, which a normal run of the test does not load" if odd else ""


def _forget_exit_functions() -> None:
    """Leave to the parent what it has registered for its exit: files and folders that both see."""
    atexit._clear()
    for finalizer in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        finalizer.atexit = False
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]


def _with_packages(name: str) -> Iterator[str]:
    """A module and the packages around it, in the order in which Python loads them."""
    parts = name.split(".")
    return (".".join(parts[:size]) for size in range(1, len(parts) + 1))


def _loaded(names: set[str]) -> Iterator[tuple[str, str]]:
    """Those of some modules that are files and belong neither to Python nor to pytest."""
    for name in sorted(names):
        # What is imported later may remove modules: setuptools does with packages of its own copies.
        module, top = sys.modules.get(name), name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not Path(file).is_absolute() or getattr(module, "__name__", "") != name:
            continue
        if not is_of_python(file) and top not in NOT_THE_TESTS:
            yield name, file


def unfit(before: Collection[str]) -> str:
    """Why this process cannot be forked, in one line, or nothing: more threads than one, or what forks cannot share.

    Parameters
    ----------
    before
        What was open before the modules were imported (`_open`).
    """
    tasks = len(list(Path("/proc/self/task").iterdir()))
    if tasks != 1:
        return f"importing the test's modules starts {plural(tasks - 1, 'thread')}"
    for target in _open():
        if target.startswith(_DEVICES) or (target.startswith(_SHARED) and target not in before):
            return f"importing the test's modules opens {target}"
    return ""


def _open() -> list[str]:
    """What this process has open: paths, and names as "socket:[42]"."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        # Not the descriptor of the folder itself.
        with contextlib.suppress(OSError):
            found.append(str(descriptor.readlink()))
    return found


def _fork(
    message: Fork,
    connection: socket.socket,
    descriptors: list[int],
    environment: dict[str, str],
    groups: Mapping[str, tuple[str, ...]],
) -> int:
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
        _forget_exit_functions()
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
        # Asking numpy itself would load its module of random numbers.
        random = sys.modules.get("numpy.random")
        if random is not None:
            random.seed()
        worker.main(channel, parent, stacks, groups=groups)
    finally:
        os._exit(1)
