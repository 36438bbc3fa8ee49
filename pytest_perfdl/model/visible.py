"""Text that may be printed or written: without secrets, and without characters that a terminal would obey."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeVar

# Removes secrets from text that is printed or written: reports of CI runs are public.
#
# What is removed: user names and passwords in URLs, such as those of git remotes; parameters of URLs that grant access,
# such as signatures of S3 and Azure; headers of authorization; tokens in the formats of well-known services; private
# keys; and the values of environment variables whose names say that they are secret, such as GITHUB_TOKEN,
# ACTIONS_RUNTIME_TOKEN, AWS_SECRET_ACCESS_KEY and HF_TOKEN.


HIDDEN = "***"
"""Stands for a secret, as in the logs of GitHub Actions."""
LEAST = 8
"""Characters of a variable's value that make it a secret: shorter ones may occur by chance."""
_LONG = 12
"""Characters from which a value of letters and digits is replaced also within a longer word."""
_WORDS = re.compile(r"(?:[a-z]+|[A-Z]+|[A-Z][a-z]+)(?:[-_. /](?:[a-z]+|[A-Z]+|[A-Z][a-z]+))*")
"""Values that may be names of tests, files and machines: words of letters."""
# A password may hold an "@" itself.
_IN_URL = re.compile(r"(?<=://)[^/\s?#\"'\\<>]+@")
_PARAMETER = re.compile(r"([?&;]([\w-]+)=)[^&;\s\"'<>#\\]+")
_GRANTING = re.compile(
    r"sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token)|awsaccesskeyid", re.IGNORECASE
)
"""Names of parameters beside those that `is_secret_name` knows (signed URLs of S3, Google Cloud Storage and Azure)."""
_HEADER = re.compile(
    r"((?:authorization[\"']?\s*[:=]\s*[\"']?(?:\w+\s+)?|\b(?:bearer|basic)\s+(?=\S{16})))[\w.~+/=:-]+", re.IGNORECASE
)
_OF_HEADERS = tuple(form(name) for name in ("uthorization", "earer ", "asic ") for form in (str.lower, str.upper))
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----(?:.*?-----END \1-----|[\w+/=\s\\]*)", re.DOTALL)
_TOKENS = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|hf_[A-Za-z0-9]{16,}|gl(?:pat|cbt|rt|dt|ptt|soat)-[\w.-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|npm_[A-Za-z0-9]{36}"
    r"|xox[abeprs]-[\w-]{10,}|sk-[A-Za-z0-9_-]{20,}|pypi-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
)
"""Of GitHub, Hugging Face, GitLab, AWS, Google, npm, Slack, OpenAI and PyPI, and JSON web tokens."""
_SECRET_NAME = re.compile(
    # Not of what language models read: MAX_TOKENS, TOKENIZER.
    r"TOKEN(?!S|IZ)|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|(?:^|[_-])(?:AUTH|PAT|PWD)(?:[_-]|$)"
    r"|(?<!PUBLIC)(?<!CACHE)(?<!PRIMARY)(?<!SORT)[_-]KEY$",
    re.IGNORECASE,
)
_PLACE_NAME = re.compile(r"(?:SOCK|FILE|PATH|DIR|HOME|URL|^PWD|^OLDPWD)$", re.IGNORECASE)
"""Ends of names of variables that say where a secret is."""
_MAY = ("://", "_", "-", ".", "A")
"""Every secret of a known format has one of these."""

_T = TypeVar("_T")


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable or option with this name is a secret.

    >>> [is_secret_name(name) for name in ("GITHUB_TOKEN", "SIGNING_KEY", "GIT_AUTHOR_NAME", "MAX_TOKENS")]
    [True, True, False, False]
    """
    return bool(_SECRET_NAME.search(name)) and not _PLACE_NAME.search(name)


def without_secrets(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Text with `***` for every secret.

    >>> without_secrets("fatal: https://x-access-token:abc@github.com/a/b.git not found", {})
    'fatal: https://***@github.com/a/b.git not found'
    >>> without_secrets("the token is 0123456789abcdef", {"MY_TOKEN": "0123456789abcdef"})
    'the token is ***'
    """
    if "://" in text:
        text = _IN_URL.sub(f"{HIDDEN}@", text)
    if "=" in text:
        text = _PARAMETER.sub(_parameter, text)
    if any(part in text for part in _MAY):
        text = _TOKENS.sub(HIDDEN, text)
    if "-----BEGIN" in text:
        text = _PRIVATE_KEY.sub(HIDDEN, text)
    if any(part in text for part in _OF_HEADERS):
        text = _HEADER.sub(rf"\1{HIDDEN}", text)
    for value, pattern in _values(environ):
        if value in text:
            text = pattern.sub(HIDDEN, text)
    return text


def _parameter(found: re.Match[str]) -> str:
    name = found[2]
    return f"{found[1]}{HIDDEN}" if _GRANTING.fullmatch(name) or is_secret_name(name) else found[0]


def clean(value: _T, environ: Mapping[str, str] = os.environ) -> _T:
    """A value of dataclasses, tuples, lists and mappings with every text `without_secrets`.

    What has no secret is the same object; sequences of numbers are not looked at.
    """
    return _clean(value, environ)  # type: ignore[no-any-return]


def _clean(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return without_secrets(value, environ)
    if isinstance(value, (tuple, list)):
        if not value or isinstance(value[0], (int, float)):
            return value
        found = [_clean(each, environ) for each in value]
        same = all(new is old for new, old in zip(found, value, strict=True))
        return value if same else type(value)(found)
    if isinstance(value, Mapping):
        cleaned = {_clean(name, environ): _clean(each, environ) for name, each in value.items()}
        same = all(cleaned.get(name, value) is each for name, each in value.items())
        return value if same else cleaned
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for each in dataclasses.fields(value):
            old = getattr(value, each.name)
            new = _clean(old, environ)
            if new is not old:
                changes[each.name] = new
        return dataclasses.replace(value, **changes) if changes else value
    return value


def _values(environ: Mapping[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The values of secret variables, the longest first, so that one that contains another goes first."""
    return _own_values() if environ is os.environ else _found(environ)


@functools.cache
def _own_values() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Of this process, as it was when this was asked for the first time: it is asked for every line."""
    return _found(os.environ)


def _found(environ: Mapping[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    values = {value for name, value in environ.items() if is_secret_name(name)}
    found = {value for value in values if len(value) >= LEAST and not _WORDS.fullmatch(value)}
    return tuple((value, _pattern(value)) for value in sorted(found, key=len, reverse=True))


def _pattern(value: str) -> re.Pattern[str]:
    """Where the value stands: one that a hash or a number may contain by chance, only as a word of its own."""
    is_random = len(value) >= _LONG and any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
    escaped = re.escape(value)
    return re.compile(escaped if is_random else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])")


# Makes text from files, traces and test ids safe to print.


_HIDDEN = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")


def error_line(error: BaseException) -> str:
    r"""What an error says, in one line, behind the name of its type.

    A failure of pytest's, which is no `Exception`, is a sentence for people: it stands alone.

    >>> error_line(ValueError("no such shape\nin line 3")), error_line(AssertionError())
    ('ValueError: no such shape', 'AssertionError')
    """
    line = next(iter(str(error).strip().splitlines()), "")
    return ": ".join(filter(None, (type(error).__name__, line))) if isinstance(error, Exception) else line


def visible(text: str) -> str:
    r"""Text on one line, with control characters, marks of writing direction and surrogates spelled out.

    Names of kernels and parameters cannot move the cursor, reorder a line or break an encoding.

    >>> visible("a\x1b[31m\nb")
    'a\\x1b[31m\\nb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if char in _HIDDEN or unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")
        else char
        for char in text
    )


def harmless(text: str) -> str:
    r"""Lines to print, each `visible`, and none that GitHub's runner executes as a command.

    The runner executes commands in output lines that begin with two colons (after optional spaces) or contain `##[`; a
    backslash prevents it. Secrets are removed.

    >>> print(harmless("one\n  ::stop-commands::x"))
    one
      \::stop-commands::x
    """
    return "\n".join(map(_harmless_line, without_secrets(text).split("\n")))


def _harmless_line(line: str) -> str:
    line = visible(line).replace("##[", "#\\#[")
    start = len(line) - len(line.lstrip())
    return f"{line[:start]}\\{line[start:]}" if line.startswith("::", start) else line
