"""GitHub's REST API: requests with a token that is never printed, tried again where that helps.

https://docs.github.com/rest; limits and when to ask again: https://docs.github.com/rest/using-the-rest-api/
best-practices-for-using-the-rest-api.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from typing import Any

from pytest_perfdl import __version__
from pytest_perfdl.model.errors import ApiError
from pytest_perfdl.model.visible import visible
from pytest_perfdl.system import clocks

DEFAULT_URL = "https://api.github.com"
ATTEMPTS = 4
"""Requests until the answer counts, with pauses of 1, 2 and 4 seconds between them."""
LONGEST_PAUSE = 60
"""Seconds that a server can make this wait for the next attempt."""
ANSWER_LIMIT = 2**26
"""Bytes of an answer; a hundred comments have at most 26 MB."""
_SECONDS = 30
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Api:
    """A server and the token for it."""

    url: str
    token: str = field(repr=False)
    sleep: Callable[[float], None] = clocks.sleep

    def call(self, method: str, path: str, data: Mapping[str, Any] | None = None, *, attempts: int = ATTEMPTS) -> Any:
        """Make one request; the answer's JSON.

        Parameters
        ----------
        path
            With leading slash, such as "/repos/owner/name/issues/1/comments".
        attempts
            1 for a request that must not be made twice.

        Raises
        ------
        ApiError
            When the server refuses, does not answer, or answers otherwise than with JSON.
        """
        for attempt in range(attempts):
            try:
                return self._once(method, path, data)
            except _Again as again:
                if attempt + 1 == attempts:
                    raise again.error from None
                self.sleep(min(again.seconds or 2**attempt, LONGEST_PAUSE))
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, data: Mapping[str, Any] | None) -> Any:
        place = f"{method} {path.partition('?')[0]}"
        request = self._request(method, path, data)
        try:
            with _opener().open(request, timeout=_SECONDS) as response:
                text = response.read(ANSWER_LIMIT + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(place, error) from None
        except (OSError, HTTPException) as error:
            # URLError is an OSError, and holds the one that it comes from.
            why = getattr(error, "reason", None) or error
            raise _Again(ApiError(f"{place}: {self.url} does not answer ({self._clean(str(why))})"), 0) from None
        try:
            if len(text) > ANSWER_LIMIT:
                raise ValueError
            return json.loads(text) if text else None
        except (ValueError, RecursionError):
            raise ApiError(f"{place}: the answer of {self.url} is not JSON: check GITHUB_API_URL") from None

    def _request(self, method: str, path: str, data: Mapping[str, Any] | None) -> urllib.request.Request:
        try:
            request = urllib.request.Request(
                self.url + path, method=method, data=None if data is None else json.dumps(data).encode()
            )
        except ValueError:
            raise ApiError(f"GITHUB_API_URL is not an address: {visible(self.url)}") from None
        if request.type not in ("https", "http"):
            raise ApiError(f"GITHUB_API_URL is not an address: {visible(self.url)}")
        for name, value in {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "User-Agent": f"pytest-perfdl/{__version__}",
            "X-GitHub-Api-Version": "2022-11-28",
        }.items():
            request.add_header(name, value)
        return request

    def _refused(self, place: str, error: urllib.error.HTTPError) -> Exception:
        said = ""
        with contextlib.suppress(OSError, HTTPException, ValueError, RecursionError):
            answer = json.loads(error.read(2**16))
            said = str(answer.get("message", "")) if isinstance(answer, dict) else ""
        refused = ApiError(f"{place}: {error.code} {self._clean(said or str(error.reason))}", error.code)
        pause = _pause(error.headers)
        # A limit on requests is told as 403, too; without permission there is neither the header nor the word.
        is_limit = error.code == 403 and (pause or "rate limit" in said.lower())
        return _Again(refused, pause) if error.code in _TEMPORARY or is_limit else refused

    def _clean(self, text: str) -> str:
        """What a server says, short, on one line and without the token."""
        return visible(text.replace(self.token, "***") if self.token else text)[:200]


class _Again(Exception):
    """A request that may succeed later: its error, and the seconds that the server asks to wait, 0 if it does not."""

    def __init__(self, error: ApiError, seconds: float) -> None:
        super().__init__()
        self.error = error
        self.seconds = seconds


def _opener() -> urllib.request.OpenerDirector:
    """Opens without following redirects, which would carry the token to another server: they are errors."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _pause(headers: Message) -> float:
    """Seconds of `Retry-After`; a date there is not read."""
    text = str(headers.get("Retry-After", ""))
    return float(text) if text.isascii() and text.isdigit() else 0.0
