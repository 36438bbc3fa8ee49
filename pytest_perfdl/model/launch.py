"""How the ranks of a distributed test are launched, as a plain value."""

from __future__ import annotations

from dataclasses import dataclass

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
