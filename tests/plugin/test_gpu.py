"""`pytest --perf` on a stand-in for a GPU: measured, compared, and every fault of a device told in one clear line."""

import itertools
import os
import shutil
import subprocess
import threading

import pytest
from plugin.gpu import GpuProject
from stand_in.stand_in_gpu import Card, Setup

pytestmark = pytest.mark.long

AGAINST = ("--perf-against=HEAD", "--perf-budget=4")
GPU = "conftest.GPU"


@pytest.fixture
def project(tmp_path):
    def made(**options):
        return GpuProject(tmp_path / "project", **options)

    return made


def finding(test, code):
    (found,) = [each for each in test["integrity"] if each["code"] == code]
    return found["message"]


def overlaps(project):
    """How often a process launched something before what another one had launched was over."""
    busy = sorted((begin, end, pid) for pid, each in project.busy().items() for begin, end in each)
    return sum(first[1] > second[0] for first, second in itertools.pairwise(busy) if first[2] != second[2])


def test_a_step_is_measured_and_compared_and_the_sides_take_turns_on_the_device(project):
    made = project(head="(batch @ batch).relu()")
    done, test = made.measure(*AGAINST, "-v")
    metrics = test["metrics"]
    assert done.code in (0, 1), done.output
    for name in ("step_time", "kernels", "launches", "peak_memory", "static_memory", "allocations"):
        assert metrics[name]["new"] > 0, name
    assert (metrics["kernels"]["base"], metrics["kernels"]["new"]) == (2, 4)
    assert metrics["step_time"]["new"] > 1.5 * metrics["step_time"]["base"]
    assert "interleaved; GPU at up to 50 °C, 120 W on both sides" in " ".join(test["rounds"].split())
    assert overlaps(made) == 0


def test_with_mps_the_sides_take_turns_all_the_same_and_its_server_disturbs_none(project, tmp_path):
    server = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("sleep"), server)
    made = project()
    with subprocess.Popen([server, "600"]) as running:
        (made.shared / "mps").write_text(str(running.pid))
        _, test = made.measure(*AGAINST)
        running.kill()
    assert test["metrics"]["step_time"]["evidence"] == "paired"
    assert finding(test, "mps").endswith("the two processes of a paired round alternate, as without it")
    assert "withheld" not in [each["code"] for each in test["integrity"]]
    assert len(made.busy()) > 2
    assert overlaps(made) == 0


def test_cold_steps_of_both_sides_find_nothing_in_the_cache_and_counts_stay(project):
    found = {}
    # Slow enough that the host, however busy, launches ahead.
    card = Card(L2_cache_size=2**19, cache_gain=8.0, flops_per_s=1e12, bytes_per_s=2e7)
    for call in ("", ', cache="cold"'):
        made = project(call=call)
        _, test = made.measure("--perf-update", setup=Setup(cards=[card]))
        found[call] = {name: metric["new"] for name, metric in test["metrics"].items()}
        shutil.rmtree(made.root)
    warm, cold = found.values()
    for name in ("kernels", "launches", "peak_memory", "static_memory", "allocations", "ops"):
        assert warm[name] == cold[name], name
    assert cold["step_time"] > 1.1 * warm["step_time"]


def test_out_of_memory_in_the_second_process_lets_them_run_one_after_the_other(project):
    made = project(before='held = torch.empty(300 * 2**20, dtype=torch.uint8, device="cuda")')
    done, test = made.measure(*AGAINST, "-v", setup=Setup(cards=[Card(total_memory=500 * 2**20)]))
    assert "processes ran one after the other (not enough memory for both)" in " ".join(done.output.split())
    assert test["verdict"] in ("unchanged", "inconclusive")


def test_a_device_that_accepts_one_process_lets_them_run_one_after_the_other(project):
    done, test = project().measure(*AGAINST, "-v", setup=Setup(exclusive=True))
    assert "processes ran one after the other" in " ".join(done.output.split())
    assert test["verdict"] in ("unchanged", "inconclusive")


@pytest.mark.parametrize("ends", [True, False], ids=["waited for", "refused"])
def test_a_device_that_another_process_holds(project, ends):
    made = project()
    # This process is the other one.
    held = made.shared / f"context-{os.getpid()}"
    held.write_text("0")
    if ends:
        threading.Timer(10.0, held.unlink).start()
    done, test = made.measure("--perf-update", setup=Setup(exclusive=True))
    assert (done.code, test["verdict"]) == ((0, "missing") if ends else (1, "invalid"))
    if not ends:
        assert test["reason"].startswith("the GPU accepts one process at a time (exclusive-process mode), and another")


@pytest.mark.parametrize(
    "extra", [f"{GPU}.fault()", f"{GPU}.fault('CUDA error: unspecified launch failure')"], ids=["asynchronous", "lost"]
)
def test_an_error_of_the_device_is_an_error_of_the_test_at_its_call(project, extra):
    done, test = project(extra=extra).measure("--perf")
    assert test["verdict"] == "invalid"
    assert "TEST ERROR" in done.output
    assert done.line(">       perf(step, ")
    assert "pytest_perfdl/measure" not in done.output
    error = "illegal memory access" if extra.endswith("fault()") else "unspecified launch failure"
    assert error in done.line("FAILED test_gpu.py::test_step - ")
    assert "Traceback" not in done.output


@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD"])
def test_a_clock_that_is_reduced_on_both_sides_decides_nothing(project, vendor):
    done, test = project().measure(*AGAINST, setup=Setup(slow=1.5, vendor=vendor))
    assert test["verdict"] == "inconclusive"
    assert "the clock of the GPU was reduced on both sides by temperature" in test["metrics"]["step_time"]["reason"]
    assert "the clock of the GPU was reduced on both sides by temperature" in " ".join(done.output.split())


def test_a_clock_that_is_reduced_on_one_side_is_named(project):
    _, test = project(head=f"{GPU}.setup.slow = 1.4").measure(*AGAINST)
    said = finding(test, "throttled-side")
    assert said.startswith("the clock of the GPU was reduced by temperature during 0% of the time of the baseline code")
    assert said.endswith("times of the current code include that")


def test_memory_errors_of_the_device_are_noted_and_fail_nothing(project):
    made = project()
    (made.shared / "memory-errors").write_text("3")
    done, test = made.measure(*AGAINST)
    assert test["verdict"] in ("unchanged", "inconclusive")
    assert finding(test, "memory-errors").startswith("ECC found ")
    assert "memory errors of the GPU in paired rounds" in " ".join(done.output.split())


def test_rounds_beside_another_process_are_withheld(project):
    made = project()
    (made.shared / "others").write_text(str(os.getppid()))
    _, test = made.measure(*AGAINST)
    assert test["verdict"] == "inconclusive"
    assert "other processes used the GPU: " in test["metrics"]["step_time"]["reason"]
    assert f"({os.getppid()})" in finding(test, "withheld")


@pytest.mark.parametrize(
    "other, machine",
    [
        (Card(multi_processor_count=14, total_memory=2**30), "stand-in-gpu-14sm-x1-"),
        (Card("Another stand-in GPU"), "another-stand-in-gpu-108sm-x1-"),
    ],
    ids=["another MIG profile", "another device"],
)
def test_another_device_is_another_machine(project, other, machine):
    made = project()
    # With a repository the sides would be compared in paired rounds on the other device.
    shutil.rmtree(made.root / ".git")
    assert made.measure("--perf-update")[0].code == 0
    done, test = made.measure("--perf", setup=Setup(cards=[other]))
    assert test["verdict"] == "incomparable"
    assert test["reason"].startswith("baselines exist only for other machine IDs: stand-in-gpu-108sm-x1-")
    assert done.line(f"machine {machine}")


def test_lost_kernels_leave_the_verdict_on_time(project):
    done, test = project().measure(*AGAINST, setup=Setup(lose_kernels=100))
    assert test["verdict"] in ("unchanged", "inconclusive")
    assert test["metrics"]["step_time"]["verdict"] == test["verdict"]
    assert "kernels" not in test["metrics"]
    said = {each["code"]: each["message"] for each in test["integrity"]}
    assert said["kernels-lost"].startswith("two profiles are incomplete (")
    assert "no-exemplar" not in said
    assert "kernels, operators and their counts are not judged, times are" in " ".join(done.output.split())


def test_an_event_that_never_comes_ends_with_the_timeout(project):
    done, test = project(extra=f"{GPU}.forever()").measure("--perf", "--perf-timeout=20")
    assert test["verdict"] == "invalid"
    assert test["reason"].startswith("the test did not finish within 20 s (--perf-timeout)")
    assert done.code == 1


def test_without_visible_devices_a_test_is_one_of_the_cpu(project):
    done, test = project(device="cpu").measure("--perf-update", CUDA_VISIBLE_DEVICES="")
    assert done.code == 0, done.output
    assert "kernels" not in test["metrics"]
    assert not done.line("machine ").startswith("machine stand-in-gpu")
