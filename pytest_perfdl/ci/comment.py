"""The comment on a pull request: its text from a run, and the request that creates or updates it.

The part about the run is `report.markdown.summary`; the step summary is written by `report.github`.

The run may come from the artifact of a pull request that nobody has reviewed. So the text is always made from the run
file, which its reader checks and bounds, every link in it leads to the repository of the job, and every command in it
has options only that measure.
"""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.message import Message
from http.client import HTTPException
from typing import Any, Literal

from pytest_perfdl import __version__
from pytest_perfdl.ci.job import Head
from pytest_perfdl.model.errors import ApiError, CommandError
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import markdown
from pytest_perfdl.results.run import Run
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.system import clocks

# GitHub's REST API: requests with a token that is never printed, tried again where that helps.
#
# https://docs.github.com/rest; limits and when to ask again: https://docs.github.com/rest/using-the-rest-api/
# best-practices-for-using-the-rest-api.


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
                raise self._describe_refusal(place, error) from None
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

    def _describe_refusal(self, place: str, error: urllib.error.HTTPError) -> Exception:
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


ARTIFACT = "perf-report"
"""Name of the artifact whose comment begins with `markdown.MARKER` alone."""
MOST_PAGES = 50
"""Pages of a hundred comments that are searched."""
_PAGE = 100
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@dataclass(frozen=True, slots=True)
class Posted:
    """What became of a comment."""

    how: Literal["created", "updated", "unchanged"]
    url: str


def marker(artifact: str) -> str:
    """First line of a comment, by which it is found again.

    >>> marker("perf-report"), marker("perf-gpu")
    ('<!-- perfdl -->', '<!-- perfdl: perf-gpu -->')

    Raises
    ------
    CommandError
        When the name could end the line's HTML comment.
    """
    if not _NAME.fullmatch(artifact) or "--" in artifact:
        raise CommandError(f"--artifact {artifact!r}: use letters, digits, dots, underscores and single hyphens")
    return markdown.MARKER if artifact == ARTIFACT else f"<!-- perfdl: {artifact} -->"


def text(run: Run, artifact: str, *, repository: str, run_address: str, is_untrusted: bool) -> str:
    """The whole comment, below GitHub's limit of 65,536 characters.

    Parameters
    ----------
    artifact
        Name of the artifact that has the report.
    repository
        Address of the repository that the links to code lead to; without one there are no links.
    run_address
        Page of the workflow run that has the report; empty where it is not known.
    is_untrusted
        Whether the run is from the artifact of another workflow run, which the pull request's code could write.
    """
    first = marker(artifact)
    if is_untrusted:
        # Another interpreter is a program that somebody else names.
        results = (replace(each, judgement=_without_interpreters(each.judgement)) for each in run.results)
        run = replace(run, invocation=run.invocation.harmless(), results=tuple(results))
    notes = []
    if run_address:
        notes.append(f"The report is the artifact `{artifact}` of the [workflow run]({run_address}).")
    if is_untrusted:
        notes.append("The code of the pull request ran in that workflow run and could change these numbers.")
    end = f"\n---\n{' '.join(notes)}\n" if notes else ""
    most = markdown.COMMENT_LIMIT - 1 - len(end.encode()) - len(first.encode())
    body = markdown.summary(replace(run, repository=repository), most)
    whole = body.replace(markdown.MARKER, first, 1) + end
    # A name of a file may hold what is not UTF-8, which no server takes.
    return whole.encode("utf-8", "backslashreplace").decode("utf-8")


def _without_interpreters(judgement: Judgement) -> Judgement:
    changes = tuple(change for change in judgement.context_changes if change[0] != "interpreter")
    return replace(judgement, context_changes=changes)


def upsert(api: Api, repository: str, number: int, body: str) -> Posted:
    """Update the comment that begins with the first line of `body`, or create it.

    Only a comment that this token's user has written is updated: anybody can write that line.

    Raises
    ------
    ApiError
        When the server refuses.
    """
    own = _login(api)
    for is_last in (False, True):
        there = _find_comment(api, repository, number, body.partition("\n")[0], own)
        if there is not None:
            return _update(api, repository, there, body)
        try:
            path = f"/repos/{repository}/issues/{number}/comments"
            return Posted("created", _address(api.call("POST", path, {"body": body}, attempts=1)))
        except ApiError as error:
            # The server may have created it, and only the answer is lost.
            if is_last or 0 < error.status < 500:
                raise
    raise AssertionError("unreachable")


def _find_comment(api: Api, repository: str, number: int, first: str, own: str) -> dict[str, Any] | None:
    """The oldest comment of the user `own` that begins with a line."""
    for page in range(1, MOST_PAGES + 1):
        path = f"/repos/{repository}/issues/{number}/comments?per_page={_PAGE}&page={page}"
        comments = _list(api.call("GET", path), path)
        for each in comments:
            if _is_own(each, own) and str(each.get("body")).replace("\r\n", "\n").startswith(f"{first}\n"):
                return each
        if len(comments) < _PAGE:
            break
    return None


def _update(api: Api, repository: str, comment: Mapping[str, Any], body: str) -> Posted:
    if comment.get("body") == body:
        return Posted("unchanged", _address(comment))
    made = api.call("PATCH", f"/repos/{repository}/issues/comments/{int(comment['id'])}", {"body": body})
    return Posted("updated", _address(made))


def _login(api: Api) -> str:
    """Name of the token's user; empty for the token of a job and of an app, which may not ask."""
    try:
        user = api.call("GET", "/user")
    except ApiError as error:
        if error.status in (403, 404):
            return ""
        raise
    return str(user.get("login", "")) if isinstance(user, dict) else ""


def _is_own(comment: Mapping[str, Any], login: str) -> bool:
    user = comment.get("user")
    if not isinstance(user, dict):
        return False
    return user.get("login") == login if login else user.get("type") == "Bot"


def pull_request_of(api: Api, repository: str, head: Head) -> int | None:
    """Number of the open pull request that has this head; `None` if there is none, or it has newer commits.

    Raises
    ------
    ApiError
        When the server refuses.
    CommandError
        When several pull requests have it.
    """
    query = urllib.parse.urlencode({"state": "open", "head": head.label, "per_page": _PAGE})
    path = f"/repos/{repository}/pulls?{query}"
    # The server ignores a filter that it does not understand, so what it finds is looked at.
    found = [each["number"] for each in _list(api.call("GET", path), path) if _has_head(each, head)]
    if len(found) > 1:
        shown = ", ".join(f"#{number}" for number in found[:10])
        raise CommandError(f"several pull requests have the commit {head.commit[:12]}: {shown} (set one with --pr)")
    return found[0] if found else None


def _has_head(pull: Mapping[str, Any], head: Head) -> bool:
    about = pull.get("head")
    repository = about.get("repo") if isinstance(about, dict) else None
    return (
        type(pull.get("number")) is int
        and isinstance(repository, dict)
        and isinstance(about, dict)
        and (repository.get("full_name"), about.get("ref"), about.get("sha"))
        == (head.repository, head.branch, head.commit)
    )


def _list(answer: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(answer, list) or not all(isinstance(each, dict) for each in answer):
        raise ApiError(f"GET {path.partition('?')[0]}: the answer is not a list of objects: check GITHUB_API_URL")
    return answer


def _address(comment: Any) -> str:
    return str(comment.get("html_url", "")) if isinstance(comment, dict) else ""
