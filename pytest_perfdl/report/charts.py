"""The library that draws the page's charts: plotly.js, as the installed package `plotly` brings it.

Of the libraries that a package on PyPI brings along, plotly.js alone has every chart that the page needs (bars with a
start, waterfalls, box plots that show each point, flame graphs) without a Python stack around it. Whole it has 4.8 MB;
a page holds it once, compressed to 2 MB, and unpacks it when the first chart comes into view.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path

from pytest_perfdl.report.templating import packed, policy_hash

_FILE = "package_data/plotly.min.js"


@dataclass(frozen=True, slots=True)
class Library:
    """A script and what lets it run."""

    packed: str
    """Its text, gzip-compressed, in base64."""
    policy: str
    """The source expression of a Content Security Policy that allows exactly this script."""


@cache
def library() -> Library | None:
    """The library; `None` where the package is not installed, and then a page has tables only."""
    found = util.find_spec("plotly")
    for folder in () if found is None else found.submodule_search_locations or ():
        path = Path(folder) / _FILE
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            return Library(packed(text), policy_hash(text))
    return None
