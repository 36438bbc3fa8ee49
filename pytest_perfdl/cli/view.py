"""Open a trace in Perfetto in the browser; nothing is uploaded.

`perfdl view TRACE` prints an address and opens it. Perfetto runs in the browser and loads the file from a server on
127.0.0.1, which ends once the file is loaded, or with Ctrl-C.
"""

from __future__ import annotations

import argparse
import http.server
import secrets
import threading
import urllib.parse
import webbrowser
from pathlib import Path

from pytest_perfdl.cli.common import say
from pytest_perfdl.model.errors import INTERRUPTED, CommandError

PERFETTO = "https://ui.perfetto.dev"
PORT = 9001
"""The only port of this machine that Perfetto's own security policy lets it fetch from."""
_LAST_PORT = 65_535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument("trace", metavar="TRACE", type=Path, help="Chrome trace (.json or .json.gz)")
    parser.add_argument("--no-browser", action="store_true", help="print the URL instead of opening a browser")
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        help="port on 127.0.0.1 (default: %(default)s; Perfetto accepts no other port)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve the file until it was fetched; 130 when interrupted before."""
    if not arguments.trace.is_file():
        raise CommandError(f"{arguments.trace} is not a file")
    if not 0 <= arguments.port <= _LAST_PORT:
        raise CommandError(f"--port {arguments.port}: expected a number from 0 (any free port) to {_LAST_PORT}")
    try:
        server = serving(arguments.trace, arguments.port)
    except OSError as error:
        raise CommandError(f"port {arguments.port} of 127.0.0.1 cannot be used: {error.strerror or error}") from error
    with server:
        url = f"{PERFETTO}/#!/?url={urllib.parse.quote(address(server), safe='')}"
        say(f"serving {arguments.trace} on 127.0.0.1:{server.server_port} until Perfetto has loaded it\n{url}")
        if not arguments.no_browser:
            webbrowser.open(url)
        try:
            server.serve_until_fetched()
        except KeyboardInterrupt:
            say("interrupted before Perfetto loaded the trace", error=True)
            return INTERRUPTED
    return 0


class OneFile(http.server.ThreadingHTTPServer):
    """Serves one file, only to Perfetto's origin."""

    timeout = 0.1
    """Seconds that waiting for a connection takes before it is seen whether the file was fetched."""

    def __init__(self, trace: Path, port: int) -> None:
        self.trace = trace
        # Any local program can connect: only who was given the address knows this part of it.
        self.path = f"/{secrets.token_urlsafe(16)}/{urllib.parse.quote(trace.name)}"
        self._fetched = threading.Event()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def fetched(self) -> bool:
        """Whether Perfetto has the whole file."""
        return self._fetched.is_set()

    def serve_until_fetched(self) -> None:
        """Answer requests, each in a thread, until Perfetto has the file."""
        while not self.fetched:
            self.handle_request()

    def handle_error(self, *_: object) -> None:
        """Print nothing: the client went away, or did not send a request."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: OneFile
    timeout = 5.0
    """Seconds that the other side may be silent: browsers open connections before they need them."""

    def do_GET(self) -> None:
        """The file, whole."""
        # A page elsewhere that guesses the address gets nothing; neither does a name that points here (rebinding).
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if self.path != self.server.path or self.headers.get("Origin") != PERFETTO or host != "127.0.0.1":
            self.send_error(404)
            return
        data = self.server.trace.read_bytes()
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", PERFETTO)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        self.server._fetched.set()

    def do_OPTIONS(self) -> None:
        """What a browser asks before it lets a public page fetch from this machine."""
        self.send_response(204)
        self.send_header("Access-Control-Allow-Origin", PERFETTO)
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing: the terminal shows one address."""


def serving(trace: Path, port: int) -> OneFile:
    """A server for the file on loopback; port 0 is any free one."""
    return OneFile(trace, port)


def address(server: OneFile) -> str:
    """Where the file is."""
    return f"http://127.0.0.1:{server.server_port}{server.path}"
