"""The process group of a test with ranks: joined before its fixtures, left after them, used between blocks of steps.

Two groups exist: the test's own default group, and one of ours. Whatever the ranks agree on for a measurement goes
through ours, which uses gloo on the host, so that it adds no collective to the test's group and no work to a device.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Protocol

from pytest_perfdl.machine import state
from pytest_perfdl.measure import device
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.launch import LOOPBACK, STORE
from pytest_perfdl.model.record import MeasurementPlan

HOST_BACKEND = "gloo"
"""Runs on every machine that torch.distributed runs on."""

_DEVICE_BACKENDS = {"cuda": "nccl", "xpu": "xccl"}
"""What torch.distributed usually runs on devices of a type."""

COLLECTIVES_LATER_SECONDS = 30.0
"""By how much collectives time out later than the orchestrating process does."""

LATE_SECONDS = 0.5
"""How long threads are waited for that may record something when the profiler stops; some never sleep."""


class Ranks(Protocol):
    """What a measurement needs of the other ranks."""

    rank: int
    world_size: int
    groups: tuple[int, ...]
    """Process groups (of the operating system) of all ranks on this machine; empty where there is one process."""

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        ...

    def agree(self, *, every: bool, some: bool) -> tuple[bool, bool]:
        """Whether `every` holds on all ranks, and whether `some` holds on any: the same answer on all of them."""
        ...


class OneProcess:
    """A step that runs in one process."""

    rank = 0
    world_size = 1
    groups: tuple[int, ...] = ()

    def barrier(self) -> None:
        """There is nobody to wait for."""

    def agree(self, *, every: bool, some: bool) -> tuple[bool, bool]:
        """Its own answers."""
        return every, some


class _Group:
    """Ranks that agree through a group of their own."""

    def __init__(self, seconds: float) -> None:
        import torch.distributed as dist

        self._group: Any = dist.new_group(backend=HOST_BACKEND, timeout=timedelta(seconds=seconds))
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, (socket.gethostname(), os.getpgrp()), group=self._group)
        here = socket.gethostname()
        self.groups = tuple(group for host, group in found if host == here)

    def barrier(self) -> None:
        import torch.distributed as dist

        dist.barrier(group=self._group)

    def agree(self, *, every: bool, some: bool) -> tuple[bool, bool]:
        import torch
        import torch.distributed as dist

        answers = torch.tensor([not every, some], dtype=torch.uint8)
        dist.all_reduce(answers, dist.ReduceOp.MAX, group=self._group)
        differs, any_of = answers.tolist()
        return not differs, bool(any_of)


ONE_PROCESS = OneProcess()
_joined: list[Ranks] = []
"""The ranks of this process's test, while it is in a group that this module made."""


def current() -> Ranks:
    """The ranks of the test that runs in this process."""
    return _joined[-1] if _joined else ONE_PROCESS


def join(plan: MeasurementPlan, seconds: float) -> None:
    """Join the process group that the environment describes (`RANK`, `MASTER_ADDR`, ...; on one machine `STORE`).

    Parameters
    ----------
    seconds
        How long the ranks may make no progress.

    Raises
    ------
    PerfError
        torch.distributed cannot make the group; the message says why.
    """
    kind = device.available()
    backend, of_device = plan.backend or _usual_backend(), _DEVICE_BACKENDS.get(kind, "")
    if of_device and of_device in backend:
        device.select(kind, int(os.environ["LOCAL_RANK"]))
    elif "nccl" in backend:
        raise PerfError(f"backend={plan.backend!r} needs CUDA, which is not available: use backend='gloo'")
    # The orchestrating process ends a job that hangs, and says where its ranks are: it has to be first.
    seconds += COLLECTIVES_LATER_SECONDS
    timeout = timedelta(seconds=seconds)
    _begin(plan.backend, timeout=timeout, **_store(timeout))
    _joined.append(_Group(seconds))


def _store(timeout: timedelta) -> dict[str, Any]:
    """The file in which the ranks of one machine meet; none if they meet where the launcher says."""
    import torch.distributed as dist

    path = os.environ.pop(STORE, None)
    if path is None:
        return {}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(path, size)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    return {"store": store, "rank": rank, "world_size": size}


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Gloo listens also for a group of one process."""
    added = {name: value for name, value in LOOPBACK.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def join_alone(backend: str) -> None:
    """Make a group of this process alone, for a test whose step runs in one process; none if there is one already.

    Raises
    ------
    PerfError
        As `join`.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        with _on_loopback():
            _begin(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        _joined.append(ONE_PROCESS)


def leave() -> None:
    """Leave the process group, if this module made it."""
    if _joined:
        import torch.distributed as dist

        _joined.clear()
        # A group that is broken by a rank's death cannot be left in good order.
        with contextlib.suppress(RuntimeError, ValueError):
            dist.destroy_process_group()


def _begin(backend: str, **options: Any) -> None:
    import torch.distributed as dist

    backend = backend or _usual_backend()
    try:
        dist.init_process_group(backend, **options)
    except (RuntimeError, ValueError) as error:
        raise PerfError(f"cannot make a process group with backend={backend!r}: {_first_line(error)}") from None


def place() -> tuple[int, int, Any]:
    """Rank, number of ranks and default process group of this process; 0, 1 and `None` without a group."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 0, 1, None
    return dist.get_rank(), dist.get_world_size(), dist.group.WORLD


def let_collectives_end() -> None:
    """Wait for threads that may still record the end of a collective, which the step need not wait for.

    Gloo's threads complete the future of a collective, and run what was added to it (`then`), before they end its
    record (`ProcessGroupGloo::AsyncWork::finishWorkGloo`). If the profiler has stopped by then, they write into memory
    that it has freed, and the process dies of it soon after (seen with torch 2.13).
    """
    if place()[2] is not None:
        state.wait_for_other_threads(LATE_SECONDS)


def described() -> dict[str, Any] | None:
    """What torch.profiler writes of a rank into its trace as `distributedInfo`; `None` without a process group."""
    rank, world_size, group = place()
    if group is None:
        return None
    import torch.distributed as dist

    found: dict[str, Any] = {"backend": dist.get_backend(), "rank": rank, "world_size": world_size}
    with contextlib.suppress(AttributeError, RuntimeError):  # not before torch 2.4
        groups = dist.distributed_c10d._get_all_pg_configs()
        found |= {"pg_count": len(groups), "pg_config": groups}
    return found


def _usual_backend() -> str:
    kind = device.available()
    of_device = _DEVICE_BACKENDS.get(kind)
    return f"{device.HOST}:{HOST_BACKEND},{kind}:{of_device}" if of_device else HOST_BACKEND


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
