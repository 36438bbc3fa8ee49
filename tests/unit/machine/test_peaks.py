"""Which row a device's name finds, and what the rows say, held against figures worked out from units and clocks."""

import pytest

from pytest_perfdl.machine.rates import _DEVICES, Peaks

# Name, GB/s, teraFLOP/s of float32 and of float16 (None: not in the row).
ROWS = [
    ("NVIDIA GB300", 8000, 80, 2500),
    ("NVIDIA B300 SXM6 AC", 8000, 75, 2250),
    ("NVIDIA GB200", 8000, 80, 2500),
    ("NVIDIA B200", 8000, 75, 2250),
    ("NVIDIA B100", 8000, None, 1750),
    ("NVIDIA GH200 480GB", 4000, 66.9, 989.4),
    ("NVIDIA H200", 4800, 66.9, 989.4),
    ("NVIDIA H200 NVL", 4800, 60, 835.5),
    ("NVIDIA H100 80GB HBM3", 3350, 66.9, 989.4),
    ("NVIDIA H100 NVL", 3938, 60, 835.5),
    ("NVIDIA H100 PCIe", 2000, 51, 756),
    ("NVIDIA H20", 4000, 44, 148),
    ("NVIDIA A100-SXM4-40GB", 1555, 19.5, 312),
    ("A100-SXM4-40GB", 1555, 19.5, 312),
    ("NVIDIA A100-PCIE-40GB", 1555, 19.5, 312),
    ("NVIDIA A100-PG509-200", 1555, 19.5, 312),
    ("NVIDIA A100-SXM4-80GB", 2039, 19.5, 312),
    ("NVIDIA A100 80GB PCIe", 1935, 19.5, 312),
    ("NVIDIA A800-SXM4-80GB", 2039, 19.5, 312),
    ("NVIDIA A800 80GB PCIe", 1935, 19.5, 312),
    ("NVIDIA A30", 933, 10.3, 165),
    ("NVIDIA A40", 696, 37.4, 149.7),
    ("NVIDIA A10", 600, 31.2, 125),
    ("NVIDIA A10G", 600, 35, 70),
    ("NVIDIA RTX A6000", 768, 38.7, 154.8),
    ("NVIDIA GeForce RTX 3090", 936, 35.6, 71),
    ("NVIDIA GeForce RTX 3090 Ti", 1008, 40, 80),
    ("NVIDIA L4", 300, 30.3, 121),
    ("NVIDIA L20", 864, 59.8, 119.5),
    ("NVIDIA L40", 864, 90.5, 181.05),
    ("NVIDIA L40S", 864, 91.6, 362.05),
    ("NVIDIA RTX 6000 Ada Generation", 960, 91.1, 364.2),
    ("NVIDIA GeForce RTX 4090", 1008, 82.6, 165.2),
    ("NVIDIA GeForce RTX 5090", 1792, 104.8, 209.5),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1792, 126, 503.8),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1597, 120, 500),
    ("Tesla T4", 320, 8.1, 65),
    ("Tesla V100-SXM2-16GB", 900, 15.7, 125),
    ("Tesla V100-SXM2-32GB", 900, 15.7, 125),
    ("Tesla V100-DGXS-32GB", 900, 15.7, 125),
    ("Tesla V100-PCIE-16GB", 900, 14, 112),
    ("Tesla V100S-PCIE-32GB", 1134, 16.4, 130),
    ("AMD Instinct MI355X", 8000, 157.3, 2516.6),
    ("AMD Instinct MI350X", 8000, 144.2, 2306.9),
    ("AMD Instinct MI325X", 6000, 163.4, 1307.4),
    ("AMD Instinct MI300X", 5300, 163.4, 1307.4),
    ("AMD Instinct MI300X VF", 5300, 163.4, 1307.4),
    ("AMD Instinct MI300A", 5300, 122.6, 980.6),
    ("AMD Instinct MI250X", 1638.4, 47.85, 191.5),
    ("AMD Instinct MI250", 1638.4, 45.25, 181.05),
    ("AMD Instinct MI250X / MI250", 1638.4, 45.25, 181.05),
    ("AMD Instinct MI250X/MI250", 1638.4, 45.25, 181.05),
    ("AMD Instinct MI210", 1638.4, 45.3, 181),
    ("AMD Instinct MI100", 1228.8, 46.1, 184.6),
    ("GAUDI3", 3700, 229, 459),
    ("GAUDI2", 2460, None, None),
    ("Intel(R) Data Center GPU Max 1550", 1638.4, 26.2, 419.4),
]


def peaks_of(name):
    peaks = Peaks.of_device(name)
    assert peaks is not None
    return peaks


def tera(name, dtype):
    return peaks_of(name).flops_per_s[dtype] / 1e12


@pytest.mark.parametrize(("name", "bandwidth", "float32", "float16"), ROWS, ids=[row[0] for row in ROWS])
def test_a_name_finds_its_row(name, bandwidth, float32, float16):
    found = peaks_of(name)
    assert found.bytes_per_s == pytest.approx(bandwidth * 1e9)
    for dtype, rate in (("float32", float32), ("float16", float16)):
        assert found.flops_per_s.get(dtype) == (None if rate is None else pytest.approx(rate * 1e12))


@pytest.mark.parametrize("name", ["nvidia l40s", "Tesla t4", "AMD INSTINCT MI300X"])
def test_case_does_not_matter(name):
    assert Peaks.of_device(name) is not None


def test_every_row_is_found_by_a_name():
    assert {id(peaks_of(name)) for name, *_ in ROWS} == {id(peaks) for _, peaks in _DEVICES}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "AMD Radeon Graphics",
        "NVIDIA A100",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "GRID A100-2-10C",
        "NVIDIA A40-48Q",
        "NVIDIA H100",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA H20-3e",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA T4G",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "Quadro RTX 6000",
        "Tesla V100-FHHL-16GB",
        "AMD Instinct MI308X",
    ],
)
def test_devices_that_only_look_alike_are_unknown(name):
    assert Peaks.of_device(name) is None


ORDERS = [
    ("float64", "float32", "tf32", "float16", "float8"),
    ("float32", "bfloat16", "float8"),
    ("float16", "int8"),
]


@pytest.mark.parametrize("types", ORDERS, ids=["-".join(types) for types in ORDERS])
@pytest.mark.parametrize("name", [name for name, *_ in ROWS])
def test_fewer_bits_are_never_slower(name, types):
    rates = [rate for rate in map(peaks_of(name).flops_per_s.get, types) if rate is not None]
    assert rates == sorted(rates)


@pytest.mark.parametrize(("pattern", "peaks"), _DEVICES, ids=[pattern for pattern, _ in _DEVICES])
def test_every_row_has_a_source_plausible_rates_and_known_types(pattern, peaks):
    assert peaks.source.startswith(("NVIDIA", "AMD", "Intel"))
    assert 0.3e12 <= peaks.bytes_per_s <= 8e12
    assert {"bfloat16", "float16"} & set(peaks.flops_per_s)
    assert set(peaks.flops_per_s) <= {"float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8"}
    assert all(1e12 <= rate <= 5.1e15 for rate in peaks.flops_per_s.values())


@pytest.mark.parametrize(
    ("name", "dtype", "units", "gigahertz", "flops_per_clock"),
    [
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 108, 1.41, 2048),
        ("NVIDIA A100-SXM4-80GB", "tf32", 108, 1.41, 1024),
        ("NVIDIA A100-SXM4-80GB", "float64", 108, 1.41, 128),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 132, 1.83, 4096),
        ("NVIDIA H100 80GB HBM3", "float8", 132, 1.83, 8192),
        ("NVIDIA H100 80GB HBM3", "float32", 132, 1.98, 256),
        ("NVIDIA H100 PCIe", "bfloat16", 114, 1.62, 4096),
        ("NVIDIA H100 NVL", "float32", 132, 1.785, 256),
        ("NVIDIA B200", "float32", 148, 1.965, 256),
        ("NVIDIA B200", "float64", 148, 1.965, 128),
        ("NVIDIA A10", "bfloat16", 72, 1.695, 1024),
        ("NVIDIA A10G", "bfloat16", 80, 1.71, 512),
        ("NVIDIA L4", "float16", 58, 2.04, 1024),
        ("NVIDIA GeForce RTX 4090", "float16", 128, 2.52, 512),
        ("NVIDIA GeForce RTX 4090", "int8", 128, 2.52, 2048),
        ("NVIDIA GeForce RTX 5090", "float32", 170, 2.407, 256),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "float16", 188, 2.617, 1024),
        ("Tesla V100-SXM2-16GB", "float16", 80, 1.53, 1024),
        ("Tesla T4", "float16", 40, 1.59, 1024),
        ("AMD Instinct MI100", "float16", 120, 1.502, 1024),
        ("AMD Instinct MI250X", "float16", 110, 1.7, 1024),
        ("AMD Instinct MI250", "float64", 104, 1.7, 256),
        ("AMD Instinct MI300X", "float16", 304, 2.1, 2048),
        ("AMD Instinct MI300X", "float64", 304, 2.1, 256),
        ("AMD Instinct MI300A", "float8", 228, 2.1, 4096),
        ("AMD Instinct MI355X", "bfloat16", 256, 2.4, 4096),
        ("AMD Instinct MI350X", "float8", 256, 2.2, 8192),
        ("GAUDI2", "bfloat16", 2, 1.65, 2 * 256 * 256),
        ("GAUDI3", "bfloat16", 8, 1.75, 2 * 256 * 256),
    ],
)
def test_a_figure_is_units_times_clock(name, dtype, units, gigahertz, flops_per_clock):
    assert tera(name, dtype) == pytest.approx(units * gigahertz * flops_per_clock / 1e3, rel=0.012)


@pytest.mark.parametrize(
    ("name", "bits", "gigatransfers"),
    [
        ("NVIDIA A100-SXM4-40GB", 5120, 2.43),
        ("NVIDIA A100-SXM4-80GB", 5120, 3.186),
        ("NVIDIA H100 NVL", 6016, 5.238),
        ("Tesla T4", 256, 10),
        ("NVIDIA GeForce RTX 3090", 384, 19.5),
        ("NVIDIA GeForce RTX 4090", 384, 21),
        ("NVIDIA GeForce RTX 5090", 512, 28),
        ("AMD Instinct MI100", 4096, 2.4),
        ("AMD Instinct MI250X", 4096, 3.2),
        ("AMD Instinct MI300X", 8192, 5.2),
    ],
)
def test_bandwidth_is_width_times_transfers(name, bits, gigatransfers):
    assert peaks_of(name).bytes_per_s == pytest.approx(bits / 8 * gigatransfers * 1e9, rel=0.012)


@pytest.mark.parametrize(
    ("name", "sparse", "dtype"),
    [
        ("NVIDIA H100 80GB HBM3", 3958, "float8"),
        ("NVIDIA H100 PCIe", 1513, "bfloat16"),
        ("NVIDIA H200 NVL", 835, "tf32"),
        ("NVIDIA L4", 485, "int8"),
        ("NVIDIA L40S", 1466, "float8"),
        ("NVIDIA B200", 36_000 / 8, "bfloat16"),
        ("NVIDIA GB200", 10_000, "float8"),
    ],
)
def test_figures_printed_with_sparsity_are_halved(name, sparse, dtype):
    assert tera(name, dtype) == pytest.approx(sparse / 2, rel=1e-3)
