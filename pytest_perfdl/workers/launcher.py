"""Launches the ranks of a job with torch.distributed's elastic launcher, and waits until they have connected.

The launcher is a command (`python -m torch.distributed.run`), so that this process need not import torch, and so that
another command can start it on several machines. It tells each rank its number (`RANK`) and where the ranks find each
other; each rank then connects to this process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import select
import socket
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import IO

from pytest_perfdl.model.errors import WorkerDied
from pytest_perfdl.model.launch import Launch
from pytest_perfdl.model.units import plural
from pytest_perfdl.system import clocks, processes
from pytest_perfdl.workers.channel import Channel
from pytest_perfdl.workers.process import GRACE_SECONDS, describe_exit, output_tail
from pytest_perfdl.workers.rank_place import ADDRESS, RankReady
from pytest_perfdl.workers.rank_process import RankProcess

_BOOT = (
    "import json, os, sys; launcher = os.getppid(); "
    f"sys.path[:] = json.loads(os.environ['{ADDRESS}'])['own_path']; "
    "from pytest_perfdl.workers.rank import main; main(launcher)"
)
START_SECONDS = 60.0
"""Seconds that ranks may take at least to start, to import and to build what they run: a short timeout is for steps."""
_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 5
"""How long a rank may take to prove that it knows the secret."""
_LONGEST_SOCKET_PATH = 100
"""Bytes; systems allow 104 to 108."""
_EXIT = re.compile(r"\(exitcode:\s*(-?\d+)\).{0,40}?\(pid:\s*(\d+)\)")
"""What torch's elastic agent says of a rank that died."""
_BOX = re.compile(
    r"^[=\-\s]*$|^[WEI]\d{4} |^\s*(rank|exitcode|time|host|error_file|traceback)\s*:|^\s*Root Cause|^\[\d+\]:"
)
"""Lines of the agent's log that say nothing about why a rank failed."""


class RankLauncher:
    """The launcher's process, and the socket that the ranks connect to.

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
        self._listener, address = _listen(folder, launch)
        told = {
            "address": address,
            "secret": self._secret.hex(),
            "folder": str(folder),
            "own_path": list(own_path),
            "import_path": list(import_path),
        }
        command = self._command(executable, redirect=not inherit_output)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=None if inherit_output else self._output,
                stderr=None if inherit_output else self._output,
                cwd=working_folder,
                env={**variables, ADDRESS: json.dumps(told)},
                start_new_session=True,
            )
        except OSError as error:
            self._release()
            option = "--perf-launch: " if launch.prefix else ""
            raise WorkerDied(f"{option}{command[0]} cannot be started: {error.strerror or error}") from None
        processes.guard(self.pid)

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether the launcher has ended."""
        return self._process.poll() is not None

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
            if self.is_over:
                how = describe_exit(self._process.returncode, "the launcher of the ranks")
                raise WorkerDied(f"{how} before {plural(self._size, 'rank')} had started{self._advice()}{self._said()}")
            if clocks.monotonic() > deadline:
                raise WorkerDied(
                    f"{len(ranks)} of {plural(self._size, 'rank')} started within {seconds:g} s "
                    f"(--perf-rank-timeout){self._advice()}{self._said()}"
                )
            if not select.select([self._listener], [], [], _POLL_SECONDS)[0]:
                continue
            channel = self._authenticated(self._listener.accept()[0])
            if channel is None:
                continue
            ready = channel.receive(deadline=deadline)
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
        """The exit code of a rank, which only the launcher knows; `None` if it does not say.

        Raises
        ------
        WorkerDied
            The launcher itself was killed.
        """
        deadline = clocks.monotonic() + GRACE_SECONDS
        while True:
            over = self.is_over
            self._output.seek(0)
            text = self._output.read().decode(errors="replace")
            for code, of in _EXIT.findall(text):
                if int(of) == pid:
                    return int(code)
            if over and self._process.returncode < 0:
                raise WorkerDied(describe_exit(self._process.returncode, "the launcher of the ranks"))
            if over or clocks.monotonic() > deadline:
                return None
            clocks.sleep(_POLL_SECONDS)

    def tail(self, rank: int) -> str:
        """The end of what a rank wrote to stderr and stdout."""
        texts = []
        for stream in ("stdout", "stderr"):
            for path in sorted((self._folder / "output").glob(f"*/attempt_*/{rank}/{stream}.log")):
                with path.open("rb") as file:
                    texts.append(output_tail(file))
        return "".join(texts)

    def wait(self, seconds: float) -> None:
        """Wait for the end of the launcher."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        """End the launcher, which ends the ranks on its machine."""
        if self._launch.prefix and not self.is_over:
            # The command of a cluster ends what it started on other machines only if it is asked to.
            self._process.terminate()
            self.wait(GRACE_SECONDS)
        processes.end(self.pid)
        self._process.wait()
        self._release()

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
            options.append("--standalone")
        if redirect:
            # A file for each rank, so that the output of the one that died can be shown.
            options += ["--redirects=3", f"--log-dir={self._folder / 'output'}"]
        command = [executable, "-m", "torch.distributed.run", *options, "--no-python", executable, "-c", _BOOT]
        return [*self._launch.prefix, *command]

    def _authenticated(self, connection: socket.socket) -> Channel | None:
        """A channel to a rank; `None` if somebody else connected."""
        _limit_reads(connection, _ANSWER_SECONDS)
        with Connection(os.dup(connection.fileno())) as peer:
            try:
                deliver_challenge(peer, self._secret)
                answer_challenge(peer, self._secret)
            except Exception:  # whatever a stranger sends
                connection.close()
                return None
        _limit_reads(connection, 0)
        return Channel(connection)

    def _advice(self) -> str:
        if not self._launch.prefix:
            return ""
        return f": --perf-launch must start one launcher on each of {plural(self._launch.nodes, 'node')} (--perf-nodes)"

    def _said(self) -> str:
        """The end of what the launcher and the ranks wrote, without the frame that torch draws around it."""
        text = output_tail(self._output) + "".join(self.tail(rank) for rank in range(self._size))
        return "".join(f"\n{line}" for line in text.splitlines() if not _BOX.match(line))

    def _release(self) -> None:
        self._listener.close()
        self._output.close()


def _limit_reads(connection: socket.socket, seconds: int) -> None:
    """Have the system end reads of a blocking socket after some seconds; 0 for never."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))


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
    if launch.nodes == 1 and not launch.prefix and len(os.fsencode(path)) < _LONGEST_SOCKET_PATH:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        return listener, path
    listener = socket.create_server(("127.0.0.1" if launch.nodes == 1 and not launch.prefix else "", 0))
    host = "127.0.0.1" if launch.nodes == 1 and not launch.prefix else socket.getfqdn()
    return listener, (host, listener.getsockname()[1])
