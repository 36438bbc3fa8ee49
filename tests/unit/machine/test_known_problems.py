"""The table of versions that distort measurements: its ranges at their bounds, and which versions traces name."""

import re
from typing import get_args

import pytest

from pytest_perfdl.machine.known_problems import (
    CUPTI,
    KNOWN_PROBLEMS,
    PTI,
    ROCM,
    TORCH,
    USES,
    Use,
    installed_versions,
    known_problems,
    recorded_versions,
)

each_problem = pytest.mark.parametrize("known", KNOWN_PROBLEMS, ids=lambda known: f"{known.software}-{known.use}")


@each_problem
def test_every_entry_has_a_public_thread_an_effect_and_a_use_in_words(known):
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", known.source)
    assert known.effect
    assert known.use in USES
    assert known.software in {TORCH, CUPTI, ROCM, PTI}
    assert known.why.endswith(f"({known.source})")
    assert known.until is None or known.since < known.until


def text(numbers):
    return ".".join(map(str, numbers))


@each_problem
def test_ranges_at_their_bounds(known):
    assert known.concerns(text(known.since))
    if any(known.since):
        *rest, last = known.since
        before = (*rest, last - 1, 99) if last else (known.since[0] - 1, 99)
        assert not known.concerns(text(before))
    if known.until is None:
        assert known.concerns("999.0")
        return
    assert not known.concerns(text(known.until))
    assert not known.concerns(f"{text(known.until)}.1+cpu")
    *rest, last = known.until
    assert known.concerns(f"{text((*rest, last - 1, 99) if last else (known.until[0] - 1, 99))}+cpu")


def test_a_version_without_its_update_is_the_first_of_its_release():
    assert [known.since for known in known_problems({CUPTI: "12.6"}, {"kernels"})] == []
    assert [known.since for known in known_problems({CUPTI: "12.6.80"}, {"kernels"})] == [(12, 6, 80)]
    assert [known.until for known in known_problems({CUPTI: "13.1"}, {"graphs"})] == [(13, 1, 115)]
    assert known_problems({CUPTI: "13.1.115"}, {"graphs"}) == ()
    assert known_problems({CUPTI: "unknown"}) == known_problems({}) == ()


def test_ranges_in_words():
    assert {known.versions for known in KNOWN_PROBLEMS} >= {
        "before 2.4",
        "from 2.9",
        "12.6.80 to before 13.1",
        "any version",
    }


def test_only_what_concerns_the_use():
    versions = {TORCH: "2.13.0", CUPTI: "12.8.90"}
    assert {known.use for known in known_problems(versions)} == {"modes", "kernels", "graphs", "graph loops", "latency"}
    assert {known.use for known in known_problems(versions, {"graphs", "MI300X"})} == {"graphs"}
    assert set(USES) == set(get_args(Use))


@pytest.mark.parametrize(
    "packages, found",
    [
        ({}, {}),
        ({"intel-pti": "0.10.1"}, {}),
        ({"torch": "2.13.0+cpu"}, {TORCH: "2.13.0+cpu"}),
        ({"torch": "2.9.0+cu128"}, {TORCH: "2.9.0+cu128", CUPTI: "12.8"}),
        ({"torch": "2.9.0", "nvidia-cuda-cupti": "13.0.85"}, {TORCH: "2.9.0", CUPTI: "13.0.85"}),
        ({"torch": "2.11.0+rocm7.2"}, {TORCH: "2.11.0+rocm7.2", ROCM: "7.2"}),
        ({"torch": "2.11.0+rocm7.2.1"}, {TORCH: "2.11.0+rocm7.2.1", ROCM: "7.2.1"}),
        ({"torch": "2.8.0+xpu", "intel-pti": "0.12.3"}, {TORCH: "2.8.0+xpu", PTI: "0.12.3"}),
    ],
    ids=["nothing", "no-torch", "cpu", "cuda", "package", "rocm", "rocm-update", "xpu"],
)
def test_installed_versions(packages, found):
    assert installed_versions(packages.get) == found


@pytest.mark.parametrize(
    "metadata, found",
    [
        ({}, {}),
        ({"cuda_runtime_version": 12040, "cuda_driver_version": 12090, "cupti_version": 22}, {CUPTI: "12.4"}),
        ({"cuda_runtime_version": 13010, "cupti_version": 130100}, {CUPTI: "13.1"}),
        ({"hip_runtime_version": 60443483, "roctracer_version": 4.1}, {ROCM: "6.4"}),
        ({"hip_runtime_version": 70226015}, {ROCM: "7.2"}),
        ({"pti_version": "0.12.0", "level_zero_version": "1.6"}, {PTI: "0.12.0"}),
        ({"cuda_runtime_version": 0, "hip_runtime_version": -1}, {}),
        ({"cuda_runtime_version": "12040", "hip_runtime_version": None, "pti_version": [1]}, {}),
        ({"cuda_runtime_version": 12040.5, "pti_version": "9" * 5000}, {}),
    ],
    ids=["none", "cuda", "cuda-13", "rocm", "rocm-7", "xpu", "no-runtime", "odd", "absurd"],
)
def test_versions_that_a_trace_names(metadata, found):
    assert recorded_versions(metadata) == found
