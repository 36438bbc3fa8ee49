"""Rates of a machine: peak rates for utilization, and what predictions need; measured, given, or from data sheets.

`Peaks` are the peak rates of a CPU or of one device, `Machine` is all rates. `baselines/<machine ID>/machine.json` has
the rates from `measure.calibration`, for all tests with this ID and both sides of a comparison; `perfdl constants` adds
the rates that predictions need.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import orjson

from pytest_perfdl.model.errors import ConstantsError, MissingMachineConstant
from pytest_perfdl.model.untrusted_files import read_bytes
from pytest_perfdl.system.files import write_files

FILE = "machine.json"
"""Name of the file in the directory of a machine ID."""
LIMIT = 2**20
"""Bytes that the file may have."""
ELEMENT_TYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8")
"""Element types with separate peak rates."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of a CPU or of one device."""

    flops_per_s: Mapping[str, float]
    """FLOP/s by element type (`ELEMENT_TYPES`); one multiply-add is 2."""
    bytes_per_s: float
    """Bytes per second of the memory."""
    source: str = ""
    """Origin of the rates."""
    bandwidths: tuple[tuple[int, float], ...] = ()
    """Working-set sizes in bytes, ascending, with the bandwidth of an operator of that size (higher in caches). Empty
    if only `bytes_per_s` is known."""
    cache_bytes: int | None = None
    """Size of the last-level cache in bytes; `None` if unknown."""

    def bandwidth(self, working_set: float) -> float:
        """Bytes per second for a working set in bytes, interpolated linearly in its logarithm.

        >>> Peaks({}, 1e9, bandwidths=((1024, 4e9), (4096, 2e9))).bandwidth(2048)
        3000000000.0
        """
        if not self.bandwidths:
            return self.bytes_per_s
        place = bisect_left(self.bandwidths, (working_set, 0.0))
        if place in (0, len(self.bandwidths)):
            return self.bandwidths[max(place - 1, 0)][1]
        (low, slow), (high, fast) = self.bandwidths[place - 1 : place + 1]
        part = math.log(working_set / low) / math.log(high / low)
        return slow + part * (fast - slow)

    def least_ns(
        self, flops: float, moved: float, dtype: str, calls: int = 1, overwritten: float = 0.0
    ) -> tuple[float, float] | None:
        """Minimum time of some equal calls in nanoseconds: of all their FLOPs, and of all bytes that they move.

        Bytes that are overwritten in place are moved twice but need memory once. `None` if the rate of the element
        type is unknown. The larger of both is the roofline (S. Williams, A. Waterman, D. Patterson, "Roofline",
        CACM 52(4), 2009).

        >>> Peaks({"float32": 1e12}, 1e10).least_ns(2e9, 1e6, "float32")
        (2000000.0, 100000.0)
        """
        rate = self.flops_per_s.get(dtype)
        if flops and not rate:
            return None
        working_set = (moved - overwritten) / calls
        return flops / rate * 1e9 if rate else 0.0, moved / self.bandwidth(working_set) * 1e9

    @classmethod
    def of_device(cls, name: str) -> Peaks | None:
        """The peak rates of a device, by its name in `deviceProperties`; `None` if it is not in the table.

        The table has data-sheet values: dense, without sparsity, at boost clock, with products of 8- and 16-bit
        floats added up in float32 (in float16, GeForce devices are twice as fast). `float32` and `float64` are those
        of the fastest unit that computes in full precision, `tf32` is apart: which of them a product of float32
        matrices uses is seen in its kernels. A type that the device's matrix units lack, or that its maker gives no
        single figure for, is not in `flops_per_s`. MI250, MI250X and Max 1550 are two devices each: half of it.

        Parts of a device (MIG instances, virtual GPUs), laptops' devices and names that leave the memory open
        (`NVIDIA H100`) are `None`.

        >>> Peaks.of_device("NVIDIA H100 80GB HBM3").bytes_per_s
        3350000000000.0
        """
        if _OTHER.search(name):
            return None
        return next((peaks for pattern, peaks in _DEVICES if re.search(pattern, name, re.IGNORECASE)), None)


_OTHER = re.compile(r"\bMIG\b|\bGRID\b|-\d+[ABCQ](ME)?$|\b(Laptop|Mobile|Max-Q)\b", re.IGNORECASE)
"""Names that hold a name of the table, of something slower: a share of the device, or one that draws less power."""

# Both formats of a width, for devices that compute them at one rate.
_BOTH = {"bits16": ("bfloat16", "float16"), "bits8": ("float8", "int8")}


def _peaks(source: str, gigabytes_per_s: float, **teraflops_per_s: float) -> Peaks:
    rates = {name: rate * 1e12 for given, rate in teraflops_per_s.items() for name in _BOTH.get(given, (given,))}
    return Peaks(rates, gigabytes_per_s * 1e9, source)


# NVIDIA prints figures with 2:4 sparsity from Hopper on: these are half of them. The Hopper white paper has more
# digits than the data sheet, which has 67, 989, 1979 and 3958 teraFLOP/s for H100 SXM.
_GH100 = {"float64": 66.9, "float32": 66.9, "tf32": 494.7, "bits16": 989.4, "bits8": 1978.9}
_GH100_NVL = {"float64": 60, "float32": 60, "tf32": 417.5, "bits16": 835.5, "bits8": 1670.5}
_GA100 = {"float64": 19.5, "float32": 19.5, "tf32": 156, "bits16": 312, "int8": 624}

_A100 = "NVIDIA A100 data sheet 1758950-r4, June 2021"
_V100 = "NVIDIA V100 data sheet 1165301-r5"
_HOPPER = "NVIDIA Hopper architecture white paper"
_GA102 = "NVIDIA GA102 architecture white paper v2"
_ADA = "NVIDIA Ada architecture white paper"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell architecture white paper v1.1"
_CDNA2 = "AMD CDNA 2 architecture white paper, 2021"

_NVIDIA = (
    # One of the 8 or 72 devices of a system. On B200 NVIDIA's pages differ: the data sheet has 7.7 TB/s and rounds TF32
    # down to 1100, DGX B200 has 64 TB/s for eight; 80 of float32 and 40 of float64 were announced, 75 and 37 are sold.
    # INT8 of Blackwell Ultra is left out: pages differ there too.
    (r"\bGB300\b", _peaks("NVIDIA GB300 NVL72 page, 2025", 8000, float32=80, tf32=1250, bits16=2500, float8=5000)),
    (
        r"\bB300\b",
        _peaks("NVIDIA HGX page (B300), 2025", 8000, float64=1.25, float32=75, tf32=1125, bits16=2250, float8=4500),
    ),
    (
        r"\bGB200\b",
        _peaks("NVIDIA Blackwell data sheet 3384703", 8000, float64=40, float32=80, tf32=1250, bits16=2500, bits8=5000),
    ),
    (
        r"\bB200\b",
        _peaks("NVIDIA HGX page (B200), 2025", 8000, float64=37, float32=75, tf32=1125, bits16=2250, bits8=4500),
    ),
    (r"\bB100\b", _peaks("NVIDIA HGX page (B100), 2024", 8000, tf32=875, bits16=1750, bits8=3500)),
    # The name of GH200 has the memory of its CPU; those with 144 GB of HBM3e are not in the table.
    (r"\bGH200 (480|120|96)GB\b", _peaks("NVIDIA GH200 data sheet (96GB HBM3)", 4000, **_GH100)),
    (r"\bH200 NVL\b", _peaks("NVIDIA H200 data sheet (NVL)", 4800, **_GH100_NVL)),
    (r"\bH200\b", _peaks("NVIDIA H200 data sheet (SXM)", 4800, **_GH100)),
    (r"\bH100 NVL\b", _peaks("NVIDIA H100 NVL product brief PB-11773-001", 3938, **_GH100_NVL)),
    (
        r"\bH100 PCIe\b",
        _peaks("NVIDIA H100 data sheet (PCIe)", 2000, float64=51, float32=51, tf32=378, bits16=756, bits8=1513),
    ),
    (r"\bH100 80GB HBM3\b", _peaks(f"{_HOPPER} (SXM)", 3350, **_GH100)),
    (
        r"\bH20\b(?!-3e)",
        _peaks("NVIDIA H20 data sheet", 4000, float64=1, float32=44, tf32=74, bits16=148, bits8=296),
    ),
    # A800 differs from A100 in NVLink alone.
    (r"\bA[18]00.*80GB.*PCIe|\bA[18]00.*PCIe.*80GB", _peaks(f"{_A100} (80GB PCIe)", 1935, **_GA100)),
    (r"\bA[18]00-SXM.*80GB", _peaks(f"{_A100} (80GB SXM)", 2039, **_GA100)),
    (r"\bA[18]00.*40GB|\bA100-PG509-200\b", _peaks(f"{_A100} (40GB)", 1555, **_GA100)),
    (r"\bA30\b", _peaks("NVIDIA A30 data sheet", 933, float64=10.3, float32=10.3, tf32=82, bits16=165, int8=330)),
    (r"\bA40\b", _peaks("NVIDIA A40 data sheet 1469711-r8", 696, float32=37.4, tf32=74.8, bits16=149.7, int8=299.3)),
    (r"\bA10\b", _peaks("NVIDIA A10 data sheet", 600, float32=31.2, tf32=62.5, bits16=125, int8=250)),
    # Not an A10: more multiprocessors, tensor cores at half the rate.
    (r"\bA10G\b", _peaks("NVIDIA A10G data sheet for AWS, 2022-02-17", 600, float32=35, tf32=35, bits16=70, int8=140)),
    (r"\bRTX A6000\b", _peaks(_GA102, 768, float32=38.7, tf32=77.4, bits16=154.8, int8=309.7)),
    (r"\bRTX 3090 Ti\b", _peaks(f"{_GA102}, FP32 accumulation", 1008, float32=40, tf32=40, bits16=80, int8=320)),
    (r"\bRTX 3090\b", _peaks(f"{_GA102}, FP32 accumulation", 936, float32=35.6, tf32=35.6, bits16=71, int8=284)),
    (r"\bL4\b", _peaks("NVIDIA L4 data sheet", 300, float32=30.3, tf32=60, bits16=121, bits8=242.5)),
    (r"\bL20\b", _peaks("NVIDIA L20 data sheet", 864, float32=59.8, tf32=59.8, bits16=119.5)),
    (r"\bL40\b", _peaks("NVIDIA L40 data sheet", 864, float32=90.5, tf32=90.5, bits16=181.05, bits8=362)),
    (r"\bL40S\b", _peaks("NVIDIA L40S data sheet", 864, float32=91.6, tf32=183, bits16=362.05, bits8=733)),
    (r"\bRTX 6000 Ada\b", _peaks(_ADA, 960, float32=91.1, tf32=182.1, bits16=364.2, bits8=728.5)),
    (
        r"\bRTX 4090\b(?! D\b)",
        _peaks(f"{_ADA}, FP32 accumulation", 1008, float32=82.6, tf32=82.6, bits16=165.2, float8=330.3, int8=660.6),
    ),
    (
        r"\bRTX 5090\b(?! D\b)",
        _peaks(
            f"{_RTX_BLACKWELL}, FP32 accumulation", 1792, float32=104.8, tf32=104.8, bits16=209.5, float8=419, int8=838
        ),
    ),
    (
        r"\bRTX PRO 6000 Blackwell Workstation\b",
        _peaks("NVIDIA RTX Blackwell PRO white paper v1.0", 1792, float32=126, tf32=251.9, bits16=503.8, bits8=1007.6),
    ),
    (
        r"\bRTX PRO 6000 Blackwell Server\b",
        _peaks("NVIDIA RTX PRO 6000 Server Edition data sheet", 1597, float32=120, bits16=500, float8=1000),
    ),
    (r"\bT4\b", _peaks("NVIDIA T4 data sheet 951643, 2019", 320, float32=8.1, float16=65, int8=130)),
    (r"\bV100S-PCIE\b", _peaks(f"{_V100} (V100S)", 1134, float64=8.2, float32=16.4, float16=130)),
    (r"\bV100-PCIE\b", _peaks(f"{_V100} (PCIe)", 900, float64=7, float32=14, float16=112)),
    (r"\bV100-(SXM2|DGXS)\b", _peaks(f"{_V100} (SXM2)", 900, float64=7.8, float32=15.7, float16=125)),
)

# Figures of the matrix cores. 2.1 GHz x 304 CUs x 2048 FLOP make the 1307.4 of MI300X, 2.4 GHz x 256 x 4096 the 2.5
# PFLOP/s that AMD prints for MI355X. AMD gives no TF32 for CDNA 4.
_CDNA3 = {"float64": 163.4, "float32": 163.4, "tf32": 653.7, "bits16": 1307.4, "bits8": 2614.9}

_AMD = (
    (
        r"\bMI355X\b",
        _peaks("AMD Instinct MI355X data sheet, 2025", 8000, float64=78.6, float32=157.3, bits16=2516.6, bits8=5033.2),
    ),
    (
        r"\bMI350X\b",
        _peaks("AMD Instinct MI350X brochure, 2025", 8000, float64=72.1, float32=144.2, bits16=2306.9, bits8=4613.7),
    ),
    (r"\bMI325X\b", _peaks("AMD Instinct MI325X data sheet, 2024", 6000, **_CDNA3)),
    (r"\bMI300X\b", _peaks("AMD Instinct MI300X data sheet, 2023", 5300, **_CDNA3)),
    (
        r"\bMI300A\b",
        _peaks(
            "AMD Instinct MI300A data sheet, 2023",
            5300,
            float64=122.6,
            float32=122.6,
            tf32=490.3,
            bits16=980.6,
            bits8=1961.2,
        ),
    ),
    # MI250 goes by "MI250X / MI250" (104 CUs), MI250X (110 CUs) by its own name.
    (
        r"\bMI250\b",
        _peaks(f"{_CDNA2} (MI250, one of two dies)", 1638.4, float64=45.25, float32=45.25, bits16=181.05, int8=181.05),
    ),
    (
        r"\bMI250X\b",
        _peaks(f"{_CDNA2} (MI250X, one of two dies)", 1638.4, float64=47.85, float32=47.85, bits16=191.5, int8=191.5),
    ),
    (r"\bMI210\b", _peaks("AMD Instinct MI210 brochure", 1638.4, float64=45.3, float32=45.3, bits16=181, int8=181)),
    (
        r"\bMI100\b",
        _peaks(
            "AMD Instinct MI100 brochure, September 2020",
            1228.8,
            float64=11.5,
            float32=46.1,
            bfloat16=92.3,
            float16=184.6,
            int8=184.6,
        ),
    ),
)

# Gaudi 2 has other types too, without figures. Gaudi 3 is sold at 1.6 GHz instead of the paper's 1.75: 9 % less.
_INTEL = (
    (
        r"\bGAUDI ?3\b",
        _peaks(
            "Intel Gaudi 3 white paper 817486", 3700, float32=229, tf32=459, float16=459, bfloat16=1835, float8=1835
        ),
    ),
    (r"\bGAUDI ?2\b", _peaks("Intel Gaudi 2 white paper 839363", 2460, bfloat16=432, float8=865)),
    (
        r"\bData Center GPU Max 1550\b",
        _peaks("Intel Max 1550 specification, one of two stacks", 1638.4, float64=26.2, float32=26.2, bits16=419.4),
    ),
)

_DEVICES = (*_NVIDIA, *_AMD, *_INTEL)
"""Patterns of device names, the more special first where a name could match two."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of a machine; `None` if unknown. Bandwidths are in bytes per second."""

    memory_bytes_per_s: float | None = None
    """Memory bandwidth that streaming kernels reach."""
    pinned_bytes_per_s: float | None = None
    """Copies from pinned host memory to the device."""
    pageable_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    """Between ranks, for one all-reduce of `S` bytes on `n` ranks: `B` in 2 (n - 1) / n S / B."""
    network_latency_ns: float = 0.0
    """Latency of one message; a ring all-reduce of n ranks has 2 (n - 1) of them in sequence."""
    memory_bytes: int | None = None
    """Memory of one device."""
    cores: int | None = None
    """CPU cores that DataLoader workers can use."""
    contention: float | None = None
    """Slowdown of a computation when another process computes: 1 on separate cores, up to 2 on two threads of one
    core."""
    hand_over_ns: float | None = None
    """CPU time to receive a finished batch from a DataLoader worker."""
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """Peak rates by element type: measured, or from data sheets."""
    bandwidths: tuple[tuple[int, float], ...] = ()
    """Working-set sizes in bytes, ascending, with the bandwidth of an operator of that size."""
    cache_bytes: int | None = None
    """Size of the last-level cache."""
    event_ns: float | None = None
    """Profiler overhead per operator, with recorded shapes."""
    ratios: Mapping[str, Mapping[str, tuple[float, float, float]]] = field(default_factory=dict)
    """Relative time of an operator in another form: by form ("bfloat16", "float16", "channels_last"), then by operator
    and shapes (`operator_key`); lower quartile, median and upper quartile of interleaved replays."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Relative spread of measured rates: half the interquartile range of the repeats, divided by their median. By
    element type, and by working-set size in bytes."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Origin of the values."""
    key: str = ""
    """Machine ID and torch version of the measured rates; empty if none were measured."""
    date: str = ""
    """Day on which peak rates were measured, as 2026-11-23; empty if they were not."""

    @property
    def peaks(self) -> Peaks | None:
        """Measured peak rates for a roofline; `None` if they were not measured."""
        if not self.bandwidths or not self.flops_per_s:
            return None
        source = f"measured {self.date}"
        return Peaks(self.flops_per_s, self.bandwidths[-1][1], source, self.bandwidths, self.cache_bytes)

    def rate(self, name: str, what: str) -> float:
        """The value of a rate that must be known.

        Raises
        ------
        MissingMachineConstant
            If it is not.
        """
        value = getattr(self, name)
        if value is None:
            raise MissingMachineConstant(f"{what} is not in the trace", name=name)
        return float(value)

    def with_(self, **known: Any) -> Machine:
        """A copy with values given by the user."""
        return replace(self, **known, source={**self.source, **dict.fromkeys(known, "given")})

    def or_else(self, other: Machine) -> Machine:
        """A copy with another machine's values where this one has none."""
        mine = {name: value for name in _NAMES if (value := getattr(self, name))}
        mine["flops_per_s"] = {**other.flops_per_s, **self.flops_per_s}
        forms = dict.fromkeys((*other.ratios, *self.ratios))
        mine["ratios"] = {form: {**other.ratios.get(form, {}), **self.ratios.get(form, {})} for form in forms}
        return replace(other, **mine, source={**other.source, **self.source}, key=self.key or other.key)

    def without_peaks(self) -> Machine:
        """A copy without the rates that `measure.calibration` measures."""
        return replace(
            self,
            memory_bytes_per_s=None,
            flops_per_s={},
            bandwidths=(),
            cache_bytes=None,
            event_ns=None,
            spread={},
            key="",
            date="",
        )

    @classmethod
    def load(cls, path: Path) -> Machine:
        """Read what `save` wrote.

        Raises
        ------
        ConstantsError
            If it is not a machine.json file; the message is one line.
        """
        try:
            data = orjson.loads(read_bytes(path, LIMIT))
            unknown = sorted(data.keys() - {each.name for each in fields(cls)}) if isinstance(data, dict) else []
            if unknown:
                raise ValueError(f"unknown field {unknown[0]!r}")
            return msgspec.convert(data, cls)
        except OSError as error:
            raise ConstantsError(f"{path} cannot be read: {error.strerror}") from error
        except (msgspec.ValidationError, ValueError) as error:
            raise ConstantsError(f"{path} is not a machine.json file: {error}") from error

    def dump(self) -> bytes:
        """The known values as JSON: names sorted, rates with four digits."""
        known = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) not in _UNKNOWN}
        return orjson.dumps(_round(known), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"

    def save(self, path: Path) -> None:
        """Write `dump`, atomically.

        Raises
        ------
        OSError
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        write_files({path: self.dump()})


_NAMES = tuple(each.name for each in fields(Machine) if each.name not in ("source", "key"))
_UNKNOWN: tuple[object, ...] = (None, "", (), {}, 0.0)


def _round(value: Any) -> Any:
    """Values with four significant digits, the precision of the measurement."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {name: _round(each) for name, each in value.items()}
    return [_round(each) for each in value] if isinstance(value, (list, tuple)) else value
