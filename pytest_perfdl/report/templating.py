"""What every page of ours is made with: templates, styles, scripts, and a policy that lets only these run.

Everything that was not written here is text to the templates: names are escaped, control characters and marks of
writing direction are spelled out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_perfdl.model import units
from pytest_perfdl.report import words

_TEMPLATES = Path(__file__).parent / "templates"


def environment() -> jinja2.Environment:
    """Templates with the filters that all pages use: `visible`, `quantity`, `percent`, `number` and `plural`."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    made.filters.update(
        visible=words.visible, quantity=_quantity, percent=_percent, number=_number, plural=units.plural
    )
    return made


def frame(*more: str) -> dict[str, Markup]:
    """Style and script of a page, and the hashes that its policy allows them by; `more` are further scripts' files."""
    style, script = _asset("style.css"), "\n".join(_asset(name) for name in ("script.js", *more))
    return {
        "style": Markup(style),
        "script": Markup(script),
        "style_hash": Markup(policy_hash(style)),
        "script_hash": Markup(policy_hash(script)),
    }


def script_safe(data: Any) -> Markup:
    r"""JSON that may stand inside a script element: no `<`, no `&`, ASCII only.

    >>> script_safe("</script>")
    Markup('"\\u003c/script\\u003e"')
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def packed(text: str) -> Markup:
    """Text gzip-compressed and in base64, for what a page unpacks when it needs it; equal text gives equal bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    data = packer.compress(text.encode("utf-8", "backslashreplace")) + packer.flush()
    return Markup(base64.b64encode(data).decode("ascii"))


def _finalize(value: Any) -> Any:
    """Spell out control characters in every text that a template shows."""
    if isinstance(value, Markup):
        return value
    return words.visible(value) if isinstance(value, str) else value


def _number(value: float | None) -> str:
    """A number for scripts to sort by; empty for none."""
    return "" if value is None or not math.isfinite(value) else repr(value)


def _quantity(value: float | None, unit: str, signed: bool = False) -> str:
    return "" if value is None or not math.isfinite(value) else units.format_quantity(value, unit, signed=signed)


def _percent(ratio: float | None) -> str:
    return "" if ratio is None or not math.isfinite(ratio) else units.format_percent(ratio, signed=False)


def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def policy_hash(text: str) -> str:
    """The source expression that allows exactly this inline text, per Content Security Policy level 2."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
