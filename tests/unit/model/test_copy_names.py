"""Directions and host memory of copies, from their names in traces of CUDA, HIP and Level Zero."""

import pytest

from pytest_perfdl.model.copy_names import direction, host_memory, is_from_pageable, is_to_host


@pytest.mark.parametrize(
    ("name", "kind", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "h2d", "pageable"),
        ("Memcpy HtoD (Pinned -> Device)", "h2d", "pinned"),
        ("Memcpy HtoD (Host -> Device)", "h2d", ""),
        ("Memcpy (Pageable -> Device)", "h2d", "pageable"),
        ("CopyHostToDevice", "h2d", ""),
        ("zeCommandListAppendMemoryCopy(M2D)", "h2d", ""),
        ("Memcpy DtoH (Device -> Pageable)", "d2h", "pageable"),
        ("Memcpy DtoH (Device -> Pinned)", "d2h", "pinned"),
        ("CopyDeviceToHost", "d2h", ""),
        ("zeCommandListAppendMemoryCopy(D2M)", "d2h", ""),
        ("Memcpy DtoD (Device -> Device)", "d2d", ""),
        ("zeCommandListAppendMemoryCopy(D2D)", "d2d", ""),
        ("Memcpy PtoP (Device -> Device)", "p2p", ""),
        ("Memcpy HtoH (Pageable -> Pinned)", "h2h", "pageable"),
        ("Memcpy", "", ""),
        ("unpinned_add_kernel", "", ""),
    ],
)
def test_what_the_name_of_a_copy_says(name: str, kind: str, memory: str) -> None:
    assert (direction(name), host_memory(name)) == (kind, memory)
    assert is_to_host(name) == (kind == "d2h")
    assert is_from_pageable(name) == (kind == "h2d" and memory == "pageable")
