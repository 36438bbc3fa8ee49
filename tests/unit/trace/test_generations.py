"""Generations and vendors: what each calls its device work and its calls, read into one set of categories."""

import pytest

from pytest_perfdl.trace import Category, loads, read
from pytest_perfdl.trace.model import DEVICE_CATEGORIES, LAUNCH_CATEGORIES
from unit.trace.chrome import corpus_file, kernel, launch, text, trace, x


def test_codes_that_others_have_stored_do_not_move():
    assert [int(category) for category in Category] == list(range(len(Category)))
    assert (Category.CPU_OP, Category.KERNEL, Category.GLOW_RUNTIME, Category.NONE) == (0, 5, 16, 17)
    assert trace().categories == tuple(category.label for category in Category)


@pytest.mark.parametrize(
    ("device", "call"),
    [
        pytest.param("kernel", "cuda_runtime", id="cuda-and-rocm"),
        pytest.param("kernel", "cuda_driver", id="cuda-driver"),
        pytest.param("Kernel", "Runtime", id="2021"),
        pytest.param("kernel", "xpu_runtime", id="xpu"),
        pytest.param("gpu_memcpy", "xpu_driver", id="xpu-driver"),
        pytest.param("mtia_ccp_events", "mtia_runtime", id="mtia"),
        pytest.param("kernel", "privateuse1_runtime", id="privateuse1"),
        pytest.param("gpu_memset", "privateuse1_driver", id="privateuse1-driver"),
        pytest.param("kernel", "hpu_op", id="hpu"),
        pytest.param("kernel", "glow_runtime", id="glow"),
    ],
)
def test_device_work_is_joined_to_its_call(device, call):
    found = trace(x("call", 1, 1, call, correlation=7), x("work", 3, 1, device, pid=0, tid=0, correlation=7, stream=0))
    assert found.device_rows().tolist() == [1]
    assert found.launch_rows().tolist() == [0]
    assert found.correlation.tolist() == [7, 7]
    assert found.category[1] in DEVICE_CATEGORIES
    assert found.category[0] in LAUNCH_CATEGORIES


def test_mtia_device_work_is_read_as_kernels():
    found = trace(x("op", 1, 1, "mtia_ccp_events", correlation=1), kernel("k", 2, 1, 2))
    assert found.rows(Category.KERNEL).tolist() == [0, 1]
    assert "mtia_ccp_events" not in found.categories


@pytest.mark.parametrize("category", ["cuda_sync", "cuda_event", "xpu_sync"])
def test_synchronization_has_its_correlation(category):
    found = trace(x("Stream Sync", 1, 1, category, correlation=3))
    assert found.correlation.tolist() == [3]
    assert len(found.device_rows()) == len(found.launch_rows()) == 0


@pytest.mark.parametrize(
    "category", ["collective_comm", "mtia_insight", "external_correlation", "cpu_instant_event", "overhead"]
)
def test_other_categories_are_neither_work_nor_call(category):
    found = trace(x("event", 1, 1, category, correlation=3))
    assert found.categories[found.category[0]] == category
    assert len(found.device_rows()) == len(found.launch_rows()) == 0
    assert found.correlation.tolist() == [-1]


def test_operators_that_carry_a_stream_are_operators():
    found = trace(x("triton_poi_fused_add_0", 1, 1, stream=7, kernel_backend="triton", num_warps=4))
    assert len(found.device_rows()) == 0


def test_a_graph_launch_has_many_kernels_and_stream_0_is_a_stream():
    found = trace(
        launch(1, 1, 5, "hipGraphLaunch"),
        *[kernel(f"k{number}", 2 + number, 1, 5, stream=0) for number in range(3)],
    )
    assert found.correlation.tolist() == [5, 5, 5, 5]
    assert found.tid[found.device_rows()].tolist() == [0, 0, 0]


def test_flows_of_all_ages_are_no_surprise():
    flows = [
        {"ph": phase, "id": 1, "cat": cat, "name": cat, "pid": 1, "tid": 1, "ts": 1, "bp": "e"}
        for cat in ("ac2g", "async", "async_gpu", "async_cpu_to_gpu", "fwdbwd")
        for phase in "stf"
    ]
    found = trace(x("op", 1, 1), *flows)
    assert len(found) == 1
    assert found.findings == ()


def test_metadata_before_and_after_the_events():
    between = (
        b'{"schemaVersion":1,"trace":{"traceEvents":[1]},' + text([x("op", 1, 1)])[20:-1] + b',"baseTimeNanoseconds":5}'
    )
    for slice_bytes in (10, 2**20):
        found = loads(between, slice_bytes=slice_bytes)
        assert dict(found.metadata) == {"schemaVersion": 1, "trace": {"traceEvents": [1]}, "baseTimeNanoseconds": 5}
        assert found.base_ns == 5
        assert len(found) == 1


@pytest.mark.parametrize("base", ["x", 1.5, None, True, 2**70])
def test_a_base_time_that_is_none_is_0(base):
    assert trace(x("op", 1, 1), baseTimeNanoseconds=base).base_ns == 0


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "device", "calls"),
    [
        ("cpu_only", False, False),
        ("mi250_minitoy", True, True),
        ("mi300_bert_small", True, True),
        ("legacy_gpu_metrics", True, True),
        ("resnet50_workers0", True, True),
        ("nccl_rank0", True, True),
    ],
)
def test_public_traces_have_their_devices(name, device, calls):
    found = read(corpus_file(name))
    assert (len(found.device_rows()) > 0, len(found.launch_rows()) > 0) == (device, calls)
    assert found.findings == ()
