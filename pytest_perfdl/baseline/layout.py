"""Where the baseline of a test lies.

    <folder>/<key>/<test file without .py>/<Class>.<test>[<params>].json
    <folder>/<key>/<test file without .py>/<Class>.<test>[<params>].trace.json.gz
    <folder>/<key>/<test file without .py>/<Class>.<test>[<params>].<call>.trace.json.gz

Names must hold on every file system that a checkout may be on, and the path must follow from the node id
alone, whatever other files exist. The rules:

- ASCII letters, digits and `_ - . [ ] = , +` stay; every other byte of the UTF-8 form is percent-escaped,
  and so is a dot that is not ours: in a folder, or in the name of a class, test or call (in parameters and
  inside a key it stays). The folder of a test file that does not end in `.py` ends in `%`.
- A name that Windows reserves up to its first dot (`con`, `aux`, `com1`, ...) has its first character escaped.
- An upper-case ASCII letter in the node id, the key or the call puts `~` and 16 digits of its SHA-256 behind
  the name, since a file system may fold case: two that differ in case alone differ in that.
- A name that is too long with the longest suffix is cut, and has the digest too.

Different node ids therefore have different paths, even when compared without case.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePath

RECORD_SUFFIX = ".json"
TRACE_SUFFIX = ".trace.json.gz"
NAME_BYTES = 255
"""Longest name that common file systems take."""
_CALL_BYTES = 64
"""Longest name of a call, with its dot."""
_STEM_BYTES = NAME_BYTES - len(TRACE_SUFFIX) - _CALL_BYTES
_DIGEST_DIGITS = 16
_KEPT = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-[]=,+")
_CASED = re.compile(r"[A-Z]")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)", re.IGNORECASE)


def baseline_path(folder: Path, key_slug: str, node_id: str) -> Path:
    """The file of a test's baseline under a key, below the baseline folder.

    >>> baseline_path(Path("baselines"), "cpu", "tests/test_gpt.py::test_step[bf16-a/b]").as_posix()
    'baselines/cpu/tests/test_gpt/test_step[bf16-a%2Fb].json'

    Raises
    ------
    ValueError
        When this is not the node id of a test in a file.
    """
    file, found, rest = node_id.partition("::")
    if not found or not file or not rest:
        raise ValueError(f"{node_id!r} is not the node id of a test")
    python = file.endswith(".py")
    folders = [_limited(_escaped(part), part) for part in file.removesuffix(".py").split("/")]
    if not python:
        folders[-1] += "%"
    names, bracket, params = rest.partition("[")
    stem = ".".join(map(_escaped, names.split("::")))
    if bracket:
        stem += bracket + _escaped(params, also=b".")
    name = _limited(stem, node_id, _STEM_BYTES, folded=True) + RECORD_SUFFIX
    return key_folder(folder, key_slug).joinpath(*folders, name)


def key_folder(folder: Path, key_slug: str) -> Path:
    """The folder of all baselines of a key."""
    dots = b"." if key_slug == key_slug.strip(".") else b""
    return folder / _limited(_escaped(key_slug, also=dots), key_slug, folded=True)


def exemplar_path(record: Path, call: str) -> Path:
    """The file of a call's exemplar trace, beside the record at `record`; the unnamed call is "".

    >>> exemplar_path(Path("test_step.json"), "forward").name
    'test_step.forward.trace.json.gz'
    """
    named = "." + _limited(_escaped(call), call, _CALL_BYTES - 1, folded=True) if call else ""
    return record.with_name(_stem(record) + named + TRACE_SUFFIX)


def may_be_exemplar(name: str, record: Path) -> bool:
    """Whether a file's name is that of an exemplar of the record at `record`, for some call."""
    return re.fullmatch(rf"{re.escape(_stem(record))}(\.[^.]+)?{re.escape(TRACE_SUFFIX)}", name) is not None


def record_of(exemplar: PurePath) -> str:
    """Name of the record whose unnamed call an exemplar would be of."""
    return exemplar.name.removesuffix(TRACE_SUFFIX) + RECORD_SUFFIX


def _stem(record: Path) -> str:
    return record.name.removesuffix(RECORD_SUFFIX)


def _escaped(text: str, also: bytes = b"") -> str:
    """Percent-escape; a name cannot be empty, "." or "..", and two names never give the same."""
    kept = _KEPT | set(also)
    data = text.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in data) or "%"


def _limited(name: str, whole: str, most: int = NAME_BYTES - 1, *, folded: bool = False) -> str:
    """A name that no file system refuses; where it is cut, or case tells it apart, with the digest of `whole`."""
    if _RESERVED.match(name):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) <= most and not (folded and _CASED.search(whole)):
        return name
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    return f"{name[: most - _DIGEST_DIGITS - 1]}~{digest}"
