"""The virtual environments of the tools that are compared: one each, since their requirements differ."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = {
    "hta": ("HolisticTraceAnalysis==0.5.0", "pandas<3"),
    "traceinsight": ("traceinsight==0.6.1", "pandas<3"),
}
"""With pandas 3, which pip takes on its own, both fail on small traces: "Invalid value ... for dtype 'int8'"."""


def make(folder: Path, tracelens: str = "") -> dict[str, Path]:
    """Make the environments that are not there yet; interpreter by tool.

    TraceLens is not on PyPI, where the name belongs to another project: `tracelens` says what pip should install, a
    checkout of its repository for instance. Empty leaves it out.
    """
    wanted = dict(REQUIREMENTS)
    if tracelens:
        wanted["tracelens"] = (tracelens,)
    found = {}
    for tool, requirements in wanted.items():
        python = folder / tool / ("Scripts" if os.name == "nt" else "bin") / "python"
        done = folder / tool / ".installed"
        if not done.exists():
            print(f"making {folder / tool}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", folder / tool], check=True)
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
            subprocess.run(install, check=True)
            done.touch()
        found[tool] = python
    return found
