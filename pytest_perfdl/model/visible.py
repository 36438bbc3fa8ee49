"""Makes text from files, traces and test ids safe to print."""

from __future__ import annotations

import unicodedata

from pytest_perfdl.model.secrets import without_secrets

_HIDDEN = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")


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
