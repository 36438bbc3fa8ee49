"""What it costs only to parse: `json.loads` or `orjson.loads`, as they come, with the collector on.

python run_json.py TRACE json|orjson
"""

from __future__ import annotations

import gzip
import importlib
import sys
from pathlib import Path
from typing import Any

import measure


def main() -> None:
    loads = importlib.import_module(sys.argv[2]).loads
    path = Path(measure.path_argument())
    kept: dict[str, Any] = {}

    def read() -> None:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        kept["bytes"] = len(text)
        kept["trace"] = loads(text)

    def about() -> dict[str, object]:
        trace = kept["trace"]
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        return {"events": len(events), "bytes": kept["bytes"]}

    measure.report({"read": read}, about)


main()
