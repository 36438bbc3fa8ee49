"""What axe-core finds on a page."""

from pathlib import Path

import pytest

axe = pytest.importorskip(
    "axe_playwright_python", reason="axe-core is not installed: pip install axe-playwright-python"
)
AXE = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def serious(page):
    """What axe-core calls serious or critical: the rule, and the first element that breaks it."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")]
