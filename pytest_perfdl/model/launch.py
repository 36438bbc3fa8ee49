"""How the ranks of a distributed test are launched, as a plain value."""

from __future__ import annotations

import socket
from dataclasses import dataclass

LOOPBACK = dict(("GLOO_SOCKET_IFNAME", name) for _, name in socket.if_nameindex() if name in ("lo", "lo0"))  # noqa: C402
"""Has gloo listen on the loopback interface, which packets between processes of one machine take anyway."""
STORE = "PYTEST_PERFDL_RANKS_STORE"
"""Environment variable of a rank with the path of the file in which the ranks of one machine meet."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the ranks of a test are launched."""

    prefix: tuple[str, ...] = ()
    """Command that starts the launcher, as on a cluster; empty to start it directly."""
    nodes: int = 1
    """Machines that the ranks are divided among."""
    rendezvous: str = ""
    """Where the launchers of several machines meet, as HOST:PORT; empty for a free port of this machine."""
    timeout: float = 120.0
    """Seconds without progress of any rank after which the ranks are ended."""

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on this machine, started by this process."""
        return self.nodes == 1 and not self.prefix and not self.rendezvous
