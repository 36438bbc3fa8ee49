"""What devices can do at most, from their makers' data sheets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of one device."""

    flops_per_s: Mapping[str, float]
    """FLOP/s by element type: float64, float32, tf32, bfloat16, float16, float8, int8; one multiply-add is 2."""
    bytes_per_s: float
    """Bytes per second of the device's memory."""
    source: str = ""
    """Where the figures are from."""

    @classmethod
    def of_device(cls, name: str) -> Peaks | None:
        """The peaks of a device as `deviceProperties` names it; `None` for a device that is not in the table.

        The table holds data-sheet figures: dense, without sparsity, at boost clock. `float32` and `float64` are
        those of the fastest unit that computes in full precision, `tf32` is apart: which of them a product of
        float32 matrices uses is seen in its kernels. MI250 and MI250X are two devices each, and have half of it.

        >>> Peaks.of_device("NVIDIA H100 80GB HBM3").bytes_per_s
        3350000000000.0
        """
        return next((peaks for pattern, peaks in _DEVICES if re.search(pattern, name, re.IGNORECASE)), None)


def _peaks(source: str, gigabytes_per_s: float, **teraflops_per_s: float) -> Peaks:
    rates = {name: rate * 1e12 for name, rate in teraflops_per_s.items()}
    return Peaks(rates, gigabytes_per_s * 1e9, source)


_HOPPER = {"float64": 66.9, "float32": 66.9, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4}
_HOPPER_8_BIT = {"float8": 1978.9, "int8": 1978.9}
_AMPERE = {"float64": 19.5, "float32": 19.5, "tf32": 156, "bfloat16": 312, "float16": 312, "int8": 624}

_DEVICES = (
    (
        r"\bB200\b",
        _peaks(
            "NVIDIA HGX B200 data sheet, half of the sparse figures",
            8000,
            float64=40,
            float32=80,
            tf32=1100,
            bfloat16=2250,
            float16=2250,
            float8=4500,
            int8=4500,
        ),
    ),
    (
        r"\bH200 NVL\b",
        _peaks(
            "NVIDIA H200 data sheet (NVL), half of the sparse figures",
            4800,
            float64=60,
            float32=60,
            tf32=417.5,
            bfloat16=835.5,
            float16=835.5,
            float8=1670.5,
            int8=1670.5,
        ),
    ),
    (r"\bH200\b", _peaks("NVIDIA H200 data sheet (SXM), half of the sparse figures", 4800, **_HOPPER, **_HOPPER_8_BIT)),
    (
        r"\bH100 PCIe\b",
        _peaks(
            "NVIDIA H100 data sheet (PCIe), half of the sparse figures",
            2000,
            float64=51,
            float32=51,
            tf32=378,
            bfloat16=756,
            float16=756,
            float8=1513,
            int8=1513,
        ),
    ),
    (
        r"\bH100 NVL\b",
        _peaks(
            "NVIDIA H100 NVL data sheet, half of the sparse figures",
            3938,
            float64=60,
            float32=60,
            tf32=417.5,
            bfloat16=835.5,
            float16=835.5,
            float8=1670.5,
            int8=1670.5,
        ),
    ),
    (r"\bH100\b", _peaks("NVIDIA H100 data sheet (SXM), half of the sparse figures", 3350, **_HOPPER, **_HOPPER_8_BIT)),
    (r"\bA100.*80GB.*PCIe|\bA100.*PCIe.*80GB", _peaks("NVIDIA A100 data sheet (80GB PCIe)", 1935, **_AMPERE)),
    (r"\bA100.*80GB", _peaks("NVIDIA A100 data sheet (80GB SXM)", 2039, **_AMPERE)),
    (r"\bA100\b", _peaks("NVIDIA A100 data sheet (40GB)", 1555, **_AMPERE)),
    (r"\bV100S", _peaks("NVIDIA V100 data sheet (V100S)", 1134, float64=8.2, float32=16.4, float16=130)),
    (r"\bV100.*PCIe", _peaks("NVIDIA V100 data sheet (PCIe)", 900, float64=7, float32=14, float16=112)),
    (r"\bV100\b", _peaks("NVIDIA V100 data sheet (SXM2)", 900, float64=7.8, float32=15.7, float16=125)),
    (
        r"\bL4\b",
        _peaks(
            "NVIDIA L4 data sheet, half of the sparse figures",
            300,
            float32=30.3,
            tf32=60,
            bfloat16=121,
            float16=121,
            float8=242.5,
            int8=242.5,
        ),
    ),
    (r"\bA10\b", _peaks("NVIDIA A10 data sheet", 600, float32=31.2, tf32=62.5, bfloat16=125, float16=125, int8=250)),
    (r"\bT4\b", _peaks("NVIDIA T4 data sheet", 320, float32=8.1, float16=65, int8=130)),
    (
        r"\bRTX 4090(?! ?(D\b|Laptop))",
        _peaks(
            "NVIDIA Ada architecture white paper, FP32 accumulation",
            1008,
            float32=82.6,
            tf32=82.6,
            bfloat16=165.2,
            float16=165.2,
            float8=330.3,
            int8=660.6,
        ),
    ),
    (
        r"\bMI300X\b",
        _peaks(
            "AMD Instinct MI300X data sheet",
            5300,
            float64=163.4,
            float32=163.4,
            tf32=653.7,
            bfloat16=1307.4,
            float16=1307.4,
            float8=2614.9,
            int8=2614.9,
        ),
    ),
    (
        r"\bMI250X\b",
        _peaks(
            "AMD Instinct MI250X data sheet, one of two dies",
            1638.4,
            float64=47.85,
            float32=47.85,
            bfloat16=191.5,
            float16=191.5,
            int8=191.5,
        ),
    ),
    (
        r"\bMI250\b",
        _peaks(
            "AMD Instinct MI250 data sheet, one of two dies",
            1638.4,
            float64=45.25,
            float32=45.25,
            bfloat16=181.05,
            float16=181.05,
            int8=181.05,
        ),
    ),
)
"""Patterns of device names, the more special first."""
