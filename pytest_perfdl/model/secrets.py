"""Removes secrets from text that is printed or written: reports of CI runs are public.

What is removed: user names and passwords in URLs, such as those of git remotes; tokens in the formats of well-known
services; and the values of environment variables whose names say that they are secret, such as GITHUB_TOKEN,
ACTIONS_RUNTIME_TOKEN, AWS_SECRET_ACCESS_KEY and HF_TOKEN.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping
from typing import Any, TypeVar

HIDDEN = "***"
"""Stands for a secret, as in the logs of GitHub Actions."""
LEAST = 12
"""Characters of a variable's value that make it a secret: shorter ones may occur by chance."""
_IN_URL = re.compile(r"(?<=://)[^/\s@\"'\\<>]+@")
_TOKENS = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|hf_[A-Za-z0-9]{16,}|glpat-[\w-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|xox[abeprs]-[\w-]{10,}|sk-[A-Za-z0-9_-]{20,}|pypi-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
)
"""Of GitHub, Hugging Face, GitLab, AWS, Slack, OpenAI and PyPI, and JSON web tokens."""
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|(?:^|_)(?:AUTH|PAT|PWD)(?:_|$)", re.IGNORECASE
)
_PLACE_NAME = re.compile(r"(?:SOCK|FILE|PATH|DIR|HOME|URL|^PWD|^OLDPWD)$", re.IGNORECASE)
"""Ends of names of variables that say where a secret is."""
_MAY = ("://", "_", "-", ".", "A")
"""Every secret of a known format has one of these."""

_T = TypeVar("_T")


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable or option with this name is a secret.

    >>> [is_secret_name(name) for name in ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "GIT_AUTHOR_NAME", "SSH_AUTH_SOCK")]
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
    if any(part in text for part in _MAY):
        text = _TOKENS.sub(HIDDEN, text)
    for value in _values(environ):
        if value in text:
            text = text.replace(value, HIDDEN)
    return text


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


def _values(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values of secret variables, the longest first, so that one that contains another goes first."""
    return _own_values() if environ is os.environ else _found(environ)


@functools.cache
def _own_values() -> tuple[str, ...]:
    """Of this process, as it was when this was asked for the first time: it is asked for every line."""
    return _found(os.environ)


def _found(environ: Mapping[str, str]) -> tuple[str, ...]:
    found = {value for name, value in environ.items() if is_secret_name(name) and _is_random(value)}
    return tuple(sorted(found, key=len, reverse=True))


def _is_random(value: str) -> bool:
    """Whether a value is long and varied enough to be a secret rather than a word."""
    return len(value) >= LEAST and any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
