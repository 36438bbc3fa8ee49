import socket
import struct
import threading
import urllib.error
import urllib.request

import pytest
from plugin.project import until

from pytest_perfdl import cli
from pytest_perfdl.cli import view


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "a trace.json.gz"
    path.write_bytes(b"content")
    return path


def fetched(server, path, headers):
    """What one request gets."""
    server.timeout = 60
    answering = threading.Thread(target=server.handle_request)
    answering.start()
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, b""
    finally:
        answering.join()


def test_perfetto_gets_the_file_and_the_server_has_done_its_work(trace):
    with view.serving(trace, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, headers, content = fetched(server, server.path, {"Origin": view.PERFETTO})
        assert (status, content) == (200, b"content")
        assert headers["Access-Control-Allow-Origin"] == view.PERFETTO
        until(lambda: server.fetched)


@pytest.mark.parametrize(
    "path, headers",
    [
        ("/etc/passwd", {}),
        ("/a%20trace.json.gz", {}),
        ("{path}/../a%20trace.json.gz", {}),
        ("{path}", {"Origin": "https://example.com"}),
        ("{path}", {"Origin": ""}),
        ("{path}", {"Host": "example.com:9001"}),
    ],
    ids=["another-file", "guessed", "parent", "another-page", "no-page", "another-name"],
)
def test_nobody_else_gets_anything(trace, path, headers):
    with view.serving(trace, 0) as server:
        path = path.format(path=server.path)
        assert fetched(server, path, {"Origin": view.PERFETTO, **headers})[0] == 404
        assert not server.fetched


def test_a_file_that_is_not_there_is_one_line(capsys):
    assert cli.main(["view", "absent.json"]) == 2
    assert "absent.json is not a file" in capsys.readouterr().err


def test_a_port_in_use_is_one_line(trace, capsys):
    with view.serving(trace, 0) as server:
        assert cli.main(["view", str(trace), "--no-browser", "--port", str(server.server_port)]) == 2
    assert "127.0.0.1" in capsys.readouterr().err


def test_the_command_ends_when_the_file_was_fetched(trace, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(view.webbrowser, "open", opened.append)

    def fetch_when_told(url):
        opened.append(url)
        address = urllib.parse.unquote(url.partition("?url=")[2])
        request = urllib.request.Request(address, headers={"Origin": view.PERFETTO})
        threading.Thread(target=lambda: urllib.request.urlopen(request, timeout=5).close()).start()

    monkeypatch.setattr(view.webbrowser, "open", fetch_when_told)
    assert cli.main(["view", str(trace), "--port", "0"]) == 0
    assert opened[0].startswith("https://ui.perfetto.dev/#!/?url=http%3A%2F%2F127.0.0.1%3A")
    assert opened[0] in capsys.readouterr().out


def test_silent_and_vanishing_connections_hold_nobody_up(trace, capfd):
    with view.serving(trace, 0) as server:
        serving = threading.Thread(target=server.serve_until_fetched)
        serving.start()
        silent = socket.create_connection(server.server_address)
        vanishing = socket.create_connection(server.server_address)
        vanishing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        vanishing.sendall(f"GET {server.path} HTTP/1.1\r\n".encode())
        vanishing.close()
        request = urllib.request.Request(view.address(server), headers={"Origin": view.PERFETTO})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.read() == b"content"
        serving.join(60)
        assert not serving.is_alive()
        silent.close()
    assert capfd.readouterr() == ("", "")
