"""Files at URLs, which fsspec opens. They are only read.

The texts of errors are one line, without user names, passwords and signatures that a URL may contain.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?:::[A-Za-z0-9+.-]+)*://")
"""Also a chain of fsspec, such as `simplecache::s3://bucket/runs`, but no node id."""
_SECRET = re.compile(r"(?<=//)[^/@\s]*@|[?#].*$", re.DOTALL)
_BUCKETS = re.compile(r"(?:.*::)?(?:s3a?|gc?s)://[^/@]*@")
"""A user name or a token before a bucket, which has none."""
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "abfs": "adlfs"} | {
    "http": "aiohttp",
    "https": "aiohttp",
}
"""Package that a protocol needs."""
_LONGEST = 200
"""Characters of a backend's error."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at a URL."""

    url: str
    """Without user names, passwords and signatures."""
    _path: str
    _system: Any

    def read(self, most: int) -> bytes:
        """The first `most` bytes.

        Raises
        ------
        OSError
        """

        def read() -> bytes:
            with self._system.open(self._path, "rb") as stream:
                return bytes(stream.read(most))

        return _asked(read, f"{self.url} cannot be read")


def is_url(text: str) -> bool:
    """Whether a text is a URL, rather than the path of a file or folder.

    >>> is_url("s3://bucket/runs"), is_url("simplecache::s3://bucket/runs"), is_url("a.py::test_b[x://y]")
    (True, True, False)
    """
    return _URL.match(text) is not None and not Path(text).exists()


def plain(url: str) -> str:
    """A URL as messages name it, without user names, passwords and signatures.

    >>> plain("https://user:token@host/runs?signature=1")
    'https://host/runs'
    """
    return _SECRET.sub("", url)


def local(text: str) -> str:
    """The path of a file or folder that is to be written.

    Raises
    ------
    ValueError
        When it is a URL; the message is one line.
    """
    if is_url(text):
        raise ValueError(f"{plain(text)} is a URL: name a file or directory on this machine")
    return text


def find(url: str, ending: str) -> list[RemoteFile]:
    """The file at a URL, or the files below a folder whose names have an ending, in the order of their names.

    Raises
    ------
    OSError
        When there is none, or the URL cannot be opened; `strerror` is `None`, and the text the whole message.
    """
    where = plain(url)
    if _BUCKETS.match(url):
        raise OSError(
            f"{where}: a bucket has no user name or password in its address: set credentials in the environment or in "
            "the configuration files of the service"
        )
    system, path = _opened(url)

    def listed() -> list[str]:
        if system.isfile(path):
            return [path]
        return sorted(name for name in map(str, system.find(path)) if name.endswith(ending))

    names = _asked(listed, f"{where} cannot be listed")
    if not names:
        raise OSError(f"there is no run file at {where}{_unreached(system, path)}")
    return [RemoteFile(plain(str(system.unstrip_protocol(name))), name, system) for name in names]


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    where = plain(url)
    try:
        import fsspec
    except ImportError:
        raise OSError(f"{where} needs the package fsspec: pip install fsspec") from None
    try:
        with _quiet():
            system, path = fsspec.core.url_to_fs(url)
    except ImportError:
        protocol = re.split(r"::|://", url)[0]
        package = _PACKAGES.get(protocol, "")
        raise OSError(
            f"{where} needs a package that is not installed"
            + (f": pip install {package}" if package else f": see fsspec's documentation on {protocol}://")
        ) from None
    except Exception as error:
        raise OSError(f"{where} cannot be opened: {_reason(error)}") from None
    return system, str(path)


def _unreached(system: Any, path: str) -> str:
    """Why a place looks empty, if it could not be reached: web servers that are away are listed as empty."""
    try:
        system.info(path)
    except Exception as error:
        if isinstance(error.__cause__, OSError):
            return f": {_reason(error.__cause__)}"
    return ""


def _asked(ask: Callable[[], _T], wrong: str) -> _T:
    """The answer of a file system.

    Raises
    ------
    OSError
        For any error, since each backend raises those of its library.
    """
    try:
        with _quiet():
            return ask()
    except Exception as error:
        raise OSError(f"{wrong}: {_reason(error)}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Around calls of fsspec: a backend's warning is no error of a project that turns warnings into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _reason(error: BaseException) -> str:
    """The first line of an error's text, without what a URL in it may hold."""
    lines = str(error).splitlines()
    return plain(lines[0])[:_LONGEST] if lines else type(error).__name__
