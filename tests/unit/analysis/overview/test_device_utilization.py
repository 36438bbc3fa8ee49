"""How well a device is used: by hand, and as others published it."""

import pytest

from pytest_perfdl.analysis.overview.device import TENSOR_CORES, device_utilization
from pytest_perfdl.trace import read
from unit.trace.chrome import corpus_file, kernel, launch, step, trace, x

GEOMETRY = {"blocks per SM": 0.5, "est. achieved occupancy %": 40}


def test_every_share_by_hand():
    found = device_utilization(
        trace(
            step(1, 0, 100),
            launch(5, 2, 1),
            kernel("sm90_xmma_gemm_bf16", 10, 20, 1, **GEOMETRY),
            launch(8, 2, 2),
            kernel("ncclDevKernel_AllReduce", 20, 30, 2, stream=20),
            launch(9, 1, 3),
            kernel("Memcpy HtoD (Pinned -> Device)", 45, 15, 3, stream=22, cat="gpu_memcpy"),
            x("aten::add", 70, 15),
            launch(76, 2, 4),
            kernel("elementwise_kernel", 80, 30, 4, **GEOMETRY),
        )
    )
    # The span is 10 to 110. A kernel computes from 10 to 30 and 80 to 110; communication from 20 to 50, of which 10 are
    # hidden; the copy shows from 50 to 60; idle from 60 to 80, and from 0 to 10 of the step.
    assert found == pytest.approx(
        {
            "device_busy": 0.8,
            "sm_efficiency": 0.25,
            "occupancy": 0.4,
            # 60 to 70 on the host, 70 to 76 in the operator, 76 to 80 launching; before that 0 to 5 and 5 to 10.
            "launch_gap": 30 / 110,
            "tensor_core_share": 20 / 80,
            "exposed_copies": 0.1,
            "overlap": 10 / 30,
            "exposed_communication": 0.2,
        }
    )


def test_without_a_device_there_is_none():
    assert device_utilization(trace(step(1, 0, 100), x("aten::mm", 10, 50))) == {}


def test_what_is_not_there_is_absent():
    found = device_utilization(trace(step(1, 0, 100), launch(5, 2, 1), kernel("vectorized_add", 10, 20, 1)))
    assert found.keys() == {"device_busy", "launch_gap", "tensor_core_share", "exposed_copies"}
    assert found["tensor_core_share"] == 0


@pytest.mark.parametrize(
    "name",
    [
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32",
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x5_nn_align8>",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1_SN_1LDSB0",
    ],
)
def test_kernels_of_tensor_cores(name):
    assert TENSOR_CORES.search(name)


@pytest.mark.parametrize(
    "name",
    [
        "volta_sgemm_128x64_nn",
        "vectorized_elementwise_kernel",
        "ampere_sgemm_32x32_sliced1x4_nn",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "triton_poi_fused_add_0",
    ],
)
def test_kernels_of_other_units(name):
    assert not TENSOR_CORES.search(name)


@pytest.mark.corpus
def test_published_figures():
    found = device_utilization(read(corpus_file("nccl_rank0")))
    assert round(100 * found["overlap"], 3) == 14.946
    assert round(100 * found["device_busy"], 4) == 44.7853
