"""What is said of the software that recorded a trace: only what concerns something that the trace holds."""

import pytest

from pytest_perfdl.analysis.overview.findings import software_problems, trace_findings
from pytest_perfdl.machine.known_problems import CUPTI, PTI, TORCH
from unit.trace.chrome import kernel, launch, step, trace, x

STEP = (step(1, 0, 100), x("aten::mm", 1, 50))
KERNEL = (launch(5, 5, 1), kernel("gemm", 20, 30, 1))
GRAPH = (launch(5, 5, 1, "cudaGraphLaunch"), kernel("gemm", 20, 30, 1))
CUDA_12, CUDA_13 = {"cuda_runtime_version": 12080}, {"cuda_runtime_version": 13010}
ROCM_61, ROCM_64, ROCM_72 = ({"hip_runtime_version": number} for number in (60140092, 60443483, 70226015))
MI300X = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X VF"}]}


@pytest.mark.parametrize(
    "events, top, said",
    [
        (STEP, {}, []),
        (STEP, CUDA_12, []),
        (KERNEL, {}, []),
        (KERNEL, CUDA_12, ["CUPTI 12.8: kernels at the start of a profile"]),
        (KERNEL, CUDA_13, []),
        (GRAPH, CUDA_13, ["CUPTI 13.1: from the second profile"]),
        (KERNEL, ROCM_64, []),
        (KERNEL, ROCM_64 | MI300X, ["ROCm 6.4: the firmware of MI300X"]),
        (KERNEL, ROCM_64 | {"deviceProperties": "MI300X"}, []),
        (KERNEL, ROCM_72, ["ROCm 7.2: some or all kernels"]),
        (KERNEL, ROCM_61, []),
        ((*KERNEL, kernel("ncclDevKernel_Generic", 60, 9, 0)), ROCM_61, ["ROCm 6.1: kernels of collectives"]),
        (KERNEL, {"pti_version": "0.12.2"}, ["intel-pti 0.12.2: some kernels"]),
        (KERNEL, {"pti_version": "0.12.3"}, []),
    ],
    ids=[
        "no-version", "no-kernel", "no-version-kernel", "cuda-12", "cuda-13", "graph", "rocm-6.4", "MI300X", "odd",
        "rocm-7.2", "no-collective", "collective", "pti", "pti-fixed",
    ],
)  # fmt: skip
def test_versions_of_the_trace(events, top, said):
    found = software_problems(trace(*STEP, *events, **top))
    assert [line.startswith(text) for line, text in zip(found, said, strict=True)] == [True] * len(said)
    assert all(line.endswith(")") and "(https://github.com/" in line for line in found)


def test_versions_that_the_caller_knows_are_more_exact():
    made = trace(*STEP, *GRAPH, **CUDA_13)
    assert len(software_problems(made, {CUPTI: "13.1.80"})) == 1
    assert software_problems(made, {CUPTI: "13.1.115"}) == ()
    assert software_problems(made, {PTI: "0.13.0", TORCH: "2.14.0"}) == software_problems(made)


def test_times_of_zero():
    zero = trace(*STEP, x("aten::add", 0, 0), x("aten::mul", 0, 0))
    (line,) = software_problems(zero, {TORCH: "2.12.0+cu130"})
    assert line.startswith("torch 2.12.0+cu130: exported traces can have many events with time 0")
    assert software_problems(zero, {TORCH: "2.13.0"}) == ()
    assert software_problems(trace(*STEP), {TORCH: "2.12.0+cu130"}) == ()


def test_they_are_findings_of_the_trace():
    made = trace(*STEP, *KERNEL, **CUDA_12)
    assert tuple(each.text for each in trace_findings(made) if each.kind == "software") == software_problems(made)
