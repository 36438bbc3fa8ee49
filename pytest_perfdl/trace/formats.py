"""Recognizes, by their content, files that are not Chrome traces (of other profilers, archives), to refuse them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from pathlib import Path

from pytest_perfdl.model.errors import NotATrace
from pytest_perfdl.model.visible import visible

HEAD = 4096
"""Bytes of text by which a file is told; all but the keys of an object are in the first 300."""
RUN = "a run.json file of pytest --perf"
BASELINE = "a baseline of pytest-perfdl"
PICKLE = "a Python pickle"
OBJECT = "a JSON object without traceEvents"

_RECORD = "record one with torch.profiler"
_UNPACK = "unpack it first"
_MAGIC = (
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"PK\x05\x06", "an empty zip archive", ""),
    (b"\x1f\x8b", "compressed twice", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", _UNPACK),
    (b"BZh", "bzip2-compressed", _UNPACK),
    (b"\xfd7zXZ\x00", "xz-compressed", _UNPACK),
    (b"\x04\x22\x4d\x18", "lz4-compressed", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"SQLite format 3\x00", "an SQLite database (exported by nsys?)", _RECORD),
    (b"PAR1", "a Parquet file (exported by nsys?)", _RECORD),
    (b"ARROW1\x00", "an Arrow file (exported by nsys?)", _RECORD),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (exported by nsys?)", _RECORD),
    (b"\xff\xfe", "UTF-16 text", "convert it to UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "convert it to UTF-8"),
    *(
        (b"\x80" + bytes([protocol]), PICKLE, "compare memory snapshots with `perfdl diff --memory`")
        for protocol in range(2, 6)
    ),
)
_TAR_MAGIC = slice(257, 262)
_LFS = re.compile(rb"version https://(?:git-lfs|hawser)\.github\.com/spec/")
"""The first line of a pointer, whose key is always `version`: docs/spec.md of git-lfs."""
_PPROF = re.compile(rb"\x0a[\x02-\x0c]\x08[\x01-\x7f]{1,2}\x10")
"""A message whose first field is a short message of two numbers, as `sample_type` of pprof's profile.proto is."""
_HTML = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_XML = re.compile(rb"\s*<[?!a-zA-Z]")
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")

_PROTON = re.compile(rb'\s*\[\s*\{\s*(?:"children"\s*:\s*\[|"frame"\s*:\s*\{|"metrics"\s*:\s*\{)')
"""A list of trees, as `TreeData` of triton's proton and `from_literal` of hatchet have it."""
_TIMELINE = re.compile(rb"\s*\[\s*\[\s*(?:-?\d|\[\s*-?\d)")
"""Lists of numbers: times and sizes, or an entry for each action (`torch/profiler/_memory_profiler.py`)."""
_PATTERNS = (
    (_PPROF, "a pprof profile", _RECORD),
    (_PROTON, "a profile of Proton (hatchet)", _RECORD),
    (_TIMELINE, "a memory timeline of torch.profiler (export_memory_timeline)", "use export_chrome_trace"),
    (_HTML, "an HTML page", "download the file itself (was a login needed?)"),
    (_XML, "an XML document", "download the file itself (is it an error message of the server?)"),
)
_CHAKRA = ("a PyTorch execution trace (Chakra)", "it has no durations; use the trace of torch.profiler")
_V8 = ("a CPU profile of V8 (.cpuprofile)", _RECORD)
_SNAPSHOT = (
    "a PyTorch memory snapshot in JSON",
    "write a pickle with torch.cuda.memory._dump_snapshot() for `perfdl diff --memory`",
)
_OBJECTS = (
    (("schema", "nodes"), rb"", *_CHAKRA),
    (("schema",), rb"-chakra\.", *_CHAKRA),
    ((), rb"speedscope\.app/file-format-schema", "a speedscope profile", _RECORD),
    (("shared", "profiles"), rb"", "a speedscope profile", _RECORD),
    (("nodes", "timeDeltas"), rb"", *_V8),
    (("nodes", "startTime", "endTime"), rb"", *_V8),
    (("segments", "device_traces"), rb"", *_SNAPSHOT),
    (("schema", "tests"), rb"", RUN, "compare it with `perfdl diff`"),
    (("schema", "test", "calls"), rb"", BASELINE, "compare it with `perfdl diff`"),
    ((), rb'\A\s*\{\s*"calls"\s*:\s*\[', BASELINE, "compare it with `perfdl diff`"),
)
"""Formats of JSON objects: their keys, what is in their beginning, what they are, and what to do."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]', re.DOTALL)
_KEYS = 5
"""Keys of an object that are named."""
_NAME = 40
"""Characters of each."""


def refusal(where: str, what: str, advice: str = "") -> NotATrace:
    """The error for a file that is something else."""
    return NotATrace(f"{where} is {what}, not a trace{f': {advice}' if advice else ''}", what)


def refuse_by_start(head: bytes, where: str) -> None:
    """Raise where the first bytes of a text are those of another format.

    Raises
    ------
    NotATrace
        Its message is one line that names the format, and what to do.
    """
    for magic, what, advice in _MAGIC:
        if head.startswith(magic):
            raise refusal(where, what, advice)
    if head[_TAR_MAGIC] == b"ustar":
        raise refusal(where, "a tar archive", _UNPACK)
    if _LFS.match(head):
        command = f"git lfs pull --include={shlex.quote(Path(where).name)}"
        raise refusal(where, "a Git LFS pointer", f"fetch the file with `{command}`")
    for pattern, what, advice in _PATTERNS:
        if pattern.match(head):
            raise refusal(where, what, advice)


def refuse_by_keys(text: bytes, keys: Collection[str], where: str) -> None:
    """Raise where a JSON object without events has the keys of another format.

    Parameters
    ----------
    text
        The object or its beginning.
    keys
        Those at its top level.

    Raises
    ------
    NotATrace
        Its message is one line that names the format, and what to do.
    """
    for needed, pattern, what, advice in _OBJECTS:
        if set(keys).issuperset(needed) and re.search(pattern, text[:HEAD]):
            raise refusal(where, what, advice)


def keys_of(text: bytes) -> list[str]:
    """The keys at the top level of a JSON object, of which the end may be missing."""
    depth, last, found = 0, b"", []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == b":":
            if depth == 1 and last:
                found.append(last.decode("utf-8", "replace"))
        elif token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        last = token[1:-1] if token.startswith(b'"') else b""
    return found


def listed(names: Collection[str]) -> str:
    """The first of the names, as messages show them."""
    shown = [visible(name)[:_NAME] for name in list(names)[:_KEYS]]
    return ", ".join(shown) + (", ..." if len(names) > _KEYS else "")


def is_binary(head: bytes) -> bool:
    """Whether the bytes are no text."""
    return _BINARY.search(head) is not None
