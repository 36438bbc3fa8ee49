"""Which GPUs a run may use, from the environment and what the driver says; no GPU is needed here."""

import pytest

from pytest_perfdl.machine.visible_devices import visible_gpus, wanted_locks

BUSES = ("0000:17:00.0", "0000:65:00.0", "0000:ca:00.0")
UUIDS = ("GPU-1111aaaa-0000", "GPU-1111bbbb-0000", "GPU-2222cccc-0000")


def machine(root, models=("NVIDIA H100 80GB HBM3",) * 3, uuids=UUIDS):
    for bus, model, uuid in zip(BUSES, models, uuids, strict=True):
        folder = root / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        text = f"Model: \t\t {model}\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\n"
        (folder / "information").write_text(text)
    return root


@pytest.mark.parametrize(
    "visible, indices",
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("1", (1,)),
        ("2, 0", (0, 2)),
        ("0,7,1", (0,)),
        ("-1", ()),
        ("GPU-2222cccc-0000", (2,)),
        ("GPU-2222", (2,)),
        # Two begin with it; a slice of a GPU, which only the driver could find; a GPU that is not here.
        ("GPU-1111", (0, 1, 2)),
        ("MIG-5c1f8a3c-7d14", (0, 1, 2)),
        ("GPU-9999", (0, 1, 2)),
    ],
)
def test_what_the_environment_leaves_visible(visible, indices, tmp_path):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpus(environment, machine(tmp_path)) == tuple(BUSES[index] for index in indices)


def test_an_index_names_no_gpu_among_different_models_unless_they_are_ordered_by_address(tmp_path):
    machine(tmp_path, models=("NVIDIA A100", "NVIDIA A100", "NVIDIA H100"))
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path) == BUSES
    ordered = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_gpus(ordered, tmp_path) == BUSES[:1]


def test_a_driver_that_does_not_know_its_uuids_yet(tmp_path):
    machine(tmp_path, uuids=("GPU-????????-????",) * 3)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == BUSES[1:2]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-1111aaaa-0000"}, tmp_path) == BUSES


def test_runs_on_different_gpus_share_the_host_and_others_do_not(tmp_path):
    assert [(lock.name, lock.shared) for lock in wanted_locks({}, tmp_path)] == [("host", False)]
    machine(tmp_path)
    found = wanted_locks({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path)
    assert [(lock.name, lock.shared) for lock in found] == [
        ("host", True),
        ("gpu-0000-17-00.0", False),
        ("gpu-0000-65-00.0", False),
    ]
    assert [(lock.name, lock.shared) for lock in wanted_locks({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)] == [
        ("host", False)
    ]


def test_a_gpu_that_the_driver_does_not_describe_is_one_all_the_same(tmp_path):
    root = machine(tmp_path)
    described = root / "proc/driver/nvidia/gpus" / BUSES[1] / "information"
    described.unlink()
    described.mkdir()
    assert visible_gpus({}, root) == BUSES
