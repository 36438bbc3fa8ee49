"""URLs that fsspec opens: what is one, how messages name it, and what backends raise."""

import sys
import warnings

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pytest_perfdl.system import remote


@pytest.fixture
def backend():
    """The class of fsspec's file system in memory, whose methods may be replaced."""
    MemoryFileSystem.store.clear()
    yield MemoryFileSystem
    MemoryFileSystem.store.clear()


def refused(url):
    with pytest.raises(OSError) as error:
        remote.find(url, ".json")
    return str(error.value)


def test_files_are_found_by_their_ending_in_the_order_of_their_names(backend):
    for name in ("/runs/b.json", "/runs/deep/a.json", "/runs/a.txt", "/runs/a.json", "/other/a.json"):
        backend().pipe(name, name.encode())
    found = remote.find("memory://runs", ".json")
    assert [file.url for file in found] == [
        "memory:///runs/a.json",
        "memory:///runs/b.json",
        "memory:///runs/deep/a.json",
    ]
    assert [file.read(9) for file in found] == [b"/runs/a.j", b"/runs/b.j", b"/runs/dee"]
    assert [file.read(99) for file in remote.find("memory://runs/a.txt", ".json")] == [b"/runs/a.txt"]


def test_an_error_of_a_backend_is_one_line_without_secrets(backend, monkeypatch):
    def denied(*_, **__):
        raise KeyError("403 for https://me:SECRET@host/runs?sig=SECRET\nand more")

    backend().pipe("/runs/a.json", b"{}")
    (file,) = remote.find("memory://runs", ".json")
    with monkeypatch.context() as patched:
        patched.setattr(backend, "open", denied)
        with pytest.raises(OSError, match=r"\Amemory:///runs/a.json cannot be read: '403 for https://host/runs\Z"):
            file.read(1)
    monkeypatch.setattr(backend, "find", denied)
    assert refused("memory://runs") == "memory://runs cannot be listed: '403 for https://host/runs"
    monkeypatch.setattr(fsspec.core, "url_to_fs", denied)
    assert refused("https://me:SECRET@host/x?sig=SECRET") == (
        "https://host/x cannot be opened: '403 for https://host/runs"
    )


def test_a_server_that_is_away_is_no_empty_folder(backend, monkeypatch):
    """The backend of web servers lists one that cannot be reached as empty, and says why only of a single file."""

    def away(*_, **__):
        raise FileNotFoundError("x") from ConnectionError("Cannot connect to host")

    assert refused("memory://runs") == "there is no run file at memory://runs"
    monkeypatch.setattr(backend, "info", away)
    assert refused("memory://runs") == "there is no run file at memory://runs: Cannot connect to host"


def test_a_warning_of_a_backend_is_no_error(backend, monkeypatch):
    def warned(*_, **__):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return ["/runs/a.json"]

    monkeypatch.setattr(backend, "find", warned)
    assert len(remote.find("memory://runs", ".json")) == 1


@pytest.mark.parametrize(
    "protocol, package",
    [("s3", "s3fs"), ("gs", "gcsfs"), ("abfs", "adlfs"), ("https", "aiohttp"), ("hf", "huggingface_hub")],
)
def test_a_missing_backend_is_named_with_its_command(protocol, package, monkeypatch):
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda _url: (_ for _ in ()).throw(ImportError("Install it")))
    assert refused(f"{protocol}://bucket/runs") == (
        f"{protocol}://bucket/runs needs a package that is not installed: pip install {package}"
    )


def test_fsspec_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert refused("memory://runs") == "memory://runs needs the package fsspec: pip install fsspec"


@pytest.mark.parametrize("url", ["s3://me:SECRET@bucket/runs", "simplecache::gs://SECRET@bucket/runs"])
def test_credentials_before_a_bucket_are_refused_and_not_printed(url):
    said = refused(url)
    assert "bucket/runs: a bucket has no user name or password in its address" in said
    assert "SECRET" not in said


@pytest.mark.parametrize(
    "url, shown",
    [
        ("s3://bucket/a b", "s3://bucket/a b"),
        ("https://u:p@h/x?y=z#w", "https://h/x"),
        ("hf://datasets/a/b", "hf://datasets/a/b"),
    ],
)
def test_a_url_as_messages_name_it(url, shown):
    assert remote.plain(url) == shown


@pytest.mark.parametrize("name", ["a.py::test_b", "a.py::test_b[s3://c]", "t/a.py::test_b", "runs/a.json", "c:/runs"])
def test_a_node_id_or_a_path_is_no_url(name):
    assert not remote.is_url(name)
    assert remote.is_url(f"memory://{name}")
    assert remote.local(name) == name


def test_what_is_written_is_no_url(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"\As3://bucket/x is a URL: name a file or directory on this machine\Z"):
        remote.local("s3://me:SECRET@bucket/x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd:" / "x").mkdir(parents=True)
    assert remote.local("odd://x") == "odd://x", "a folder that is there"
