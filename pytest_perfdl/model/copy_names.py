"""What the name of a copy says: its direction, and the memory of the host's side."""

from __future__ import annotations

import re

_DIRECTIONS = (
    ("h2d", re.compile(r"HtoD|HostToDevice|H2D|M2D|(Host|Pageable|Pinned) -> Device", re.IGNORECASE)),
    ("d2h", re.compile(r"DtoH|DeviceToHost|D2H|D2M|Device -> (Host|Pageable|Pinned)", re.IGNORECASE)),
    ("p2p", re.compile(r"PtoP|P2P|PeerToPeer", re.IGNORECASE)),
    ("d2d", re.compile(r"DtoD|DeviceToDevice|D2D", re.IGNORECASE)),
    ("h2h", re.compile(r"HtoH|HostToHost|H2H", re.IGNORECASE)),
)
"""Names of CUDA ("Memcpy HtoD"), HIP ("CopyHostToDevice", "Memcpy HtoD (Host -> Device)") and Level Zero ("M2D")."""
_HOST_MEMORY = re.compile(r"\b(pinned|pageable)\b", re.IGNORECASE)


def direction(name: str) -> str:
    """`h2d`, `d2h`, `p2p` (between devices), `d2d` (within one) or `h2h`; empty where the name does not say.

    >>> direction("Memcpy HtoD (Pageable -> Device)"), direction("Memcpy PtoP"), direction("Memcpy")
    ('h2d', 'p2p', '')
    """
    return next((kind for kind, pattern in _DIRECTIONS if pattern.search(name)), "")


def host_memory(name: str) -> str:
    """`pinned` or `pageable`; empty where no side is the host's, or the name does not say.

    >>> host_memory("Memcpy HtoD (Pageable -> Device)"), host_memory("Memcpy DtoD (Device -> Device)")
    ('pageable', '')
    """
    found = _HOST_MEMORY.search(name)
    return found[1].lower() if found else ""


def is_to_host(name: str) -> bool:
    """Whether it copies from a device to the host."""
    return direction(name) == "d2h"


def is_from_pageable(name: str) -> bool:
    """Whether it copies from pageable memory of the host to a device.

    >>> is_from_pageable("Memcpy HtoD (Pageable -> Device)"), is_from_pageable("Memcpy DtoH (Device -> Pageable)")
    (True, False)
    """
    return direction(name) == "h2d" and host_memory(name) == "pageable"
