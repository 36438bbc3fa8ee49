"""Starts the ranks of a job, and waits until they have connected to this process.

Ranks of one machine are started by this process. They meet in a file of a folder that only the user can enter, and gloo
listens on the loopback interface, so no port is open to others: PyTorch's stores neither authenticate nor encrypt.

With another command in front (`--perf-launch`), ranks are started by torch.distributed's elastic launcher, which that
command starts on each machine.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import re
import secrets
import select
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pytest_perfdl.model.errors import ChannelClosed, ChannelTimeout, WorkerDied
from pytest_perfdl.model.launch import LOOPBACK, STORE, Launch
from pytest_perfdl.model.units import plural
from pytest_perfdl.system import clocks, processes
from pytest_perfdl.system.import_path import LIBRARY_FIRST, importing, module_command
from pytest_perfdl.workers.channel import Channel
from pytest_perfdl.workers.process import GRACE_SECONDS, describe_exit, output_tail
from pytest_perfdl.workers.rank_process import ADDRESS, NONCE_BYTES, RankProcess, RankReady, proof

_BOOT = (
    f"{LIBRARY_FIRST}import json; launcher = os.getppid(); "
    f"told = json.loads(os.environ['{ADDRESS}']); sys.path[:], path = told['own_path'], told['import_path']; "
    f"{importing('pytest_perfdl.workers.rank')}main(launcher)"
)
START_SECONDS = 60.0
"""Seconds that ranks may take at least to start, to import and to build what they run: a short timeout is for steps."""
_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 5.0
"""How long a rank may take to prove that it knows the secret, from its connection to the last byte."""
_MOST_STRANGERS = 64
"""Connections that have not proved it yet; of more, the oldest is closed."""
_LONGEST_SOCKET_PATH = 100
"""Bytes; systems allow 104 to 108."""
_EXIT = re.compile(r"\(exitcode:\s*(-?\d+)\).{0,40}?\(pid:\s*(\d+)\)")
"""What torch's elastic agent says of a rank that died."""
_BOX = re.compile(
    r"^[=\-\s]*$|^[WEI]\d{4} |^\s*(rank|exitcode|time|host|error_file|traceback)\s*:|^\s*Root Cause|^\[\d+\]:"
)
"""Lines of the agent's log that say nothing about why a rank failed."""


@dataclass(slots=True)
class _Stranger:
    """A connection that has not proved that it knows the secret."""

    deadline: float
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))
    received: bytes = b""


class Doorway:
    """A listening socket, of which only connections that know the secret come in.

    No connection delays another one, whatever it sends or does not send.
    """

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self._listener = listener
        self._secret = secret
        self._strangers: dict[socket.socket, _Stranger] = {}
        listener.setblocking(False)

    def close(self) -> None:
        """Close the socket, and the connections that have not come in."""
        for connection in [self._listener, *self._strangers]:
            connection.close()

    def admit(self, seconds: float) -> list[socket.socket]:
        """Wait some seconds for connections; those that have proved now that they know the secret."""
        admitted = []
        for ready in select.select([self._listener, *self._strangers], [], [], seconds)[0]:
            if ready is self._listener:
                self._meet()
            elif self._is_proved(ready):
                admitted.append(ready)
        now = clocks.monotonic()
        for connection, stranger in list(self._strangers.items()):
            if now > stranger.deadline:
                self._turn_away(connection)
        return admitted

    def _meet(self) -> None:
        with contextlib.suppress(OSError):
            connection = self._listener.accept()[0]
            if len(self._strangers) >= _MOST_STRANGERS:
                self._turn_away(next(iter(self._strangers)))
            stranger = self._strangers[connection] = _Stranger(clocks.monotonic() + _ANSWER_SECONDS)
            connection.setblocking(False)
            connection.sendall(stranger.nonce)

    def _is_proved(self, connection: socket.socket) -> bool:
        """Take what has come; whether it is all, and right."""
        stranger = self._strangers.get(connection)
        if stranger is None:  # turned away meanwhile
            return False
        wanted = proof(self._secret, "rank", stranger.nonce)
        whole = len(wanted) + NONCE_BYTES
        try:
            chunk = connection.recv(whole - len(stranger.received))
            stranger.received += chunk
            if chunk and len(stranger.received) < whole:
                return False
            theirs = stranger.received[len(wanted) :]
            if chunk and hmac.compare_digest(stranger.received[: len(wanted)], wanted):
                connection.sendall(proof(self._secret, "launcher", theirs))
                connection.setblocking(True)
                del self._strangers[connection]
                return True
        except OSError:
            pass
        self._turn_away(connection)
        return False

    def _turn_away(self, connection: socket.socket) -> None:
        del self._strangers[connection]
        connection.close()


class RankLauncher:
    """The process of the launcher, or those of the ranks, and the socket that the ranks connect to.

    Parameters
    ----------
    ranks
        Their number.
    launch
        How they are launched.
    folder
        For the socket, the ranks' stacks and their outputs.
    executable, own_path
        The Python that runs the ranks, and the path that it finds this package on.
    import_path, working_folder, variables
        `sys.path`, current folder and environment of the ranks.
    inherit_output
        Whether the user sees what the ranks write.

    Raises
    ------
    WorkerDied
        The launcher cannot be started, or its port is in use.
    """

    def __init__(
        self,
        ranks: int,
        launch: Launch,
        folder: Path,
        *,
        executable: str,
        own_path: Sequence[str],
        import_path: Sequence[str],
        working_folder: str | None,
        variables: Mapping[str, str],
        inherit_output: bool,
    ) -> None:
        self._size = ranks
        self._launch = launch
        self._folder = folder
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the launcher
        _check_port(launch.rendezvous)
        self._secret = secrets.token_bytes(32)
        listener, address = _listen(folder, launch)
        self._doorway = Doorway(listener, self._secret)
        told = {
            "address": address,
            "secret": self._secret.hex(),
            "folder": str(folder),
            "own_path": list(own_path),
            "import_path": list(import_path),
        }
        variables = {**variables, ADDRESS: json.dumps(told)}
        self._processes: list[subprocess.Popen[bytes]] = []
        command = self._command(executable, redirect=not inherit_output)
        try:
            if launch.is_local:
                port = _free_port()
                for rank in range(ranks):
                    own = variables | self._place(rank, port, variables)
                    self._start([executable, "-c", _BOOT], working_folder, own, None if inherit_output else rank)
            else:
                self._start(command, working_folder, variables, None if inherit_output else -1)
        except OSError as error:
            self.kill()
            option = "--perf-launch: " if launch.prefix else ""
            raise WorkerDied(f"{option}{command[0]} cannot be started: {error.strerror or error}") from None

    def connect(self, root: str, deadline: float) -> list[RankProcess]:
        """Wait until every rank has connected; the ranks in the order of their numbers.

        Raises
        ------
        WorkerDied
            The launcher ended before, started another number of ranks, or took too long.
        """
        seconds = max(self._launch.timeout, START_SECONDS)
        deadline = min(deadline, clocks.monotonic() + seconds)
        host = socket.gethostname()
        ranks: dict[int, RankProcess] = {}
        while len(ranks) < self._size:
            for number, process in enumerate(self._processes):
                if process.poll() is not None and not (self._launch.is_local and number in ranks):
                    how = describe_exit(process.returncode, self._name(number))
                    before = f"before {plural(self._size, 'rank')} had started"
                    raise WorkerDied(f"{how} {before}{self._advice()}{self._said()}")
            if clocks.monotonic() > deadline:
                raise WorkerDied(
                    f"{len(ranks)} of {plural(self._size, 'rank')} started within {seconds:g} s "
                    f"(--perf-rank-timeout){self._advice()}{self._said()}"
                )
            for connection in self._doorway.admit(_POLL_SECONDS):
                channel = Channel(connection)
                try:
                    ready = channel.receive(deadline=deadline)
                except (ChannelClosed, ChannelTimeout):
                    # It ended, or hangs: what is said next is how many did not.
                    channel.close()
                    continue
                assert isinstance(ready, RankReady)
                if ready.world_size != self._size or ready.rank in ranks:
                    raise WorkerDied(
                        f"the launcher started {plural(ready.world_size, 'rank')}, but the test has ranks={self._size}"
                        f"{self._advice()}"
                    )
                is_local = ready.host == host
                if is_local:
                    processes.guard(ready.pid)
                ranks[ready.rank] = RankProcess(
                    ready.rank, self._size, channel, ready.pid, is_local, folder=self._folder, root=root
                )
        return [ranks[number] for number in sorted(ranks)]

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a rank, which only what started it knows; `None` if it does not say.

        Raises
        ------
        WorkerDied
            The launcher itself was killed.
        """
        deadline = clocks.monotonic() + GRACE_SECONDS
        if self._launch.is_local:
            self.wait(GRACE_SECONDS, pid)
            return next((process.poll() for process in self._processes if process.pid == pid), None)
        (launcher,) = self._processes
        while True:
            over = launcher.poll() is not None
            self._output.seek(0)
            text = self._output.read().decode(errors="replace")
            for code, of in _EXIT.findall(text):
                if int(of) == pid:
                    return int(code)
            if over and launcher.returncode < 0:
                raise WorkerDied(describe_exit(launcher.returncode, self._name(0)))
            if over or clocks.monotonic() > deadline:
                return None
            clocks.sleep(_POLL_SECONDS)

    def tail(self, rank: int) -> str:
        """The end of what a rank wrote to stderr and stdout."""
        texts = []
        for stream in ("stdout", "stderr"):
            for path in sorted((self._folder / "output").glob(f"**/{rank}/{stream}.log")):
                with path.open("rb") as file:
                    texts.append(output_tail(file))
        return "".join(texts)

    def wait(self, seconds: float, pid: int | None = None) -> None:
        """Wait for the end of the launcher or of the ranks that this process started, or of the one with an id."""
        deadline = clocks.monotonic() + seconds
        for process in self._processes:
            if pid in (None, process.pid):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - clocks.monotonic()))

    def kill(self) -> None:
        """End the launcher, which ends the ranks on its machine, or the ranks that this process started."""
        if self._launch.prefix:
            # The command of a cluster ends what it started on other machines only if it is asked to.
            for process in self._processes:
                process.terminate()
            self.wait(GRACE_SECONDS)
        for process in self._processes:
            processes.end_and_wait(process)
        self._doorway.close()
        self._output.close()

    def _start(
        self, command: Sequence[str], folder: str | None, variables: Mapping[str, str], rank: int | None
    ) -> None:
        """Start a process; `rank` has its output in a file of its own, and `None` shows it to the user.

        Raises
        ------
        OSError
        """
        with contextlib.ExitStack() as files:
            output: list[IO[bytes] | None] = [None, None]
            if rank is not None and rank < 0:
                output = [self._output, self._output]
            elif rank is not None:
                place = self._folder / "output" / str(rank)
                place.mkdir(parents=True)
                output = [files.enter_context((place / f"{name}.log").open("wb")) for name in ("stdout", "stderr")]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output[0],
                stderr=output[1],
                cwd=folder,
                env=dict(variables),
                start_new_session=True,
            )
        self._processes.append(process)
        processes.guard(process.pid)

    def _name(self, number: int) -> str:
        return f"rank {number} of {self._size}" if self._launch.is_local else "the launcher of the ranks"

    def _place(self, rank: int, port: int, variables: Mapping[str, str]) -> dict[str, str]:
        """What torch's elastic launcher tells a rank of one machine, and where it meets the others."""
        told: dict[str, object] = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank)
        told |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), self._size)
        told |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_NAME": "default"}
        told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told |= {"TORCHELASTIC_RUN_ID": self._folder.name, "TORCHELASTIC_USE_AGENT_STORE": False}
        told |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
        told |= {STORE: self._folder / "store"}
        own = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **LOOPBACK}
        return {name: str(value) for name, value in told.items()} | {
            name: value for name, value in own.items() if name not in variables
        }

    def _command(self, executable: str, *, redirect: bool) -> list[str]:
        nodes, seconds = self._launch.nodes, max(1, round(self._launch.timeout))
        options = [f"--nnodes={nodes}", f"--nproc-per-node={self._size // nodes}", "--max-restarts=0"]
        if self._launch.rendezvous:
            options += [
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint={self._launch.rendezvous}",
                f"--rdzv-id={secrets.token_hex(8)}",
                f"--rdzv-conf=join_timeout={seconds},timeout={seconds}",
            ]
        else:
            # In a file of its own, with nothing of the network: the launcher unpickles what it finds there.
            options += ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-id={secrets.token_hex(8)}"]
        if redirect:
            # A file for each rank, so that the output of the one that died can be shown.
            options += ["--redirects=3", f"--log-dir={self._folder / 'output'}"]
        options += ["--no-python", executable, "-c", _BOOT]
        return [*self._launch.prefix, *module_command(executable, "torch.distributed.run", *options)]

    def _advice(self) -> str:
        if not self._launch.prefix:
            return ""
        return f": --perf-launch must start one launcher on each of {plural(self._launch.nodes, 'node')} (--perf-nodes)"

    def _said(self) -> str:
        """The end of what the launcher and the ranks wrote, without the frame that torch draws around it."""
        text = output_tail(self._output) + "".join(self.tail(rank) for rank in range(self._size))
        return "".join(f"\n{line}" for line in text.splitlines() if not _BOX.match(line))


def _check_port(rendezvous: str) -> None:
    """Refuse a port of this machine that is in use: the launchers would meet whoever listens there.

    Raises
    ------
    WorkerDied
    """
    if not rendezvous:
        return
    host, _, port = rendezvous.rpartition(":")
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, int(port)))
        except OSError as error:
            # Any other error means that the host is another machine.
            if error.errno == errno.EADDRINUSE:
                raise WorkerDied(f"port {port} of {host} is in use: choose another one for --perf-rendezvous") from None


def _listen(folder: Path, launch: Launch) -> tuple[socket.socket, str | tuple[str, int]]:
    """A socket for the ranks, and its address: in the file system if they are all on this machine."""
    path = str(folder / "ranks")
    is_here = launch.nodes == 1 and not launch.prefix
    if is_here and len(os.fsencode(path)) < _LONGEST_SOCKET_PATH:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        return listener, path
    listener = socket.create_server(("127.0.0.1" if is_here else "", 0))
    host = "127.0.0.1" if is_here else socket.getfqdn()
    return listener, (host, listener.getsockname()[1])


def _free_port() -> int:
    """A free port of this machine, which nothing listens on unless the test makes a group or a store of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
