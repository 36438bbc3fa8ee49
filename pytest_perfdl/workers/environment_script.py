"""Run by another interpreter (`interpreter.describe`): prints its environment as one line of JSON.

It imports nothing but the standard library, and runs on every Python that torch supports.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import sys
import sysconfig

_OF_INSTALLATION = re.compile(r"\.pyc,|^\.\./|\.dist-info/(?:RECORD|INSTALLER|REQUESTED|direct_url\.json),")
"""Lines of RECORD that differ between two installations of one wheel: a script, for example, names its interpreter."""


def main() -> None:
    """Print Python's version, the import path and the installed distributions."""
    found: dict[str, dict[str, str]] = {}
    for distribution in importlib.metadata.distributions():
        # The first one of a name is what an import finds.
        if name := re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower():
            found.setdefault(name, _described(distribution))
    path = [entry for entry in sys.path if entry]
    told = {
        "python": platform.python_version(),
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "packages": [sysconfig.get_path(name) for name in ("purelib", "platlib")],
        "path": path,
        "distributions": found,
    }
    sys.stdout.write(json.dumps(told) + "\n")


def _described(distribution: importlib.metadata.Distribution) -> dict[str, str]:
    lines = (distribution.read_text("RECORD") or "").splitlines()
    kept = sorted(line for line in lines if not _OF_INSTALLATION.search(line))
    url = json.loads(distribution.read_text("direct_url.json") or "{}")
    return {
        "version": distribution.version,
        "digest": hashlib.sha256("\n".join(kept).encode()).hexdigest()[:12] if kept else "",
        "editable": url.get("url", "") if url.get("dir_info", {}).get("editable") else "",
        "folder": str(distribution.locate_file("")),
    }


if __name__ == "__main__":
    main()
