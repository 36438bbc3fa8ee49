"""The simulated job of many ranks: its times on jobs without noise, worked out by hand, and how answers are scored."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks" / "ranks"))

import chrome_files
import generated_sets
from discrete_events import ends, ring
from job_spec import Clocks, Hiccup, Model, Network, Noise, Spec, Straggler
from simulated_job import cost_ns, simulate, step_times

from pytest_perfdl.trace import read

QUIET = Spec(
    ranks=4,
    steps=3,
    model=Model(layers=4, python_ns=2_000),
    network=Network(bytes_per_s=200e9, jitter_ns=0),
    noise=Noise(0.0, 0.0, 0.0, 0.0, 0.0),
)
"""Without noise, and with less communication than computation."""


def test_a_ring_with_equal_links_takes_all_of_its_rounds():
    """An all-reduce of 4,000 bytes by 4: 6 rounds of 1,000 bytes, which take 1 µs each."""
    assert ends(ring("all_reduce", 4, 4000), (1e9,) * 4, 0) == (6000,) * 4
    assert ends(ring("all_gather", 4, 4000), (1e9,) * 4, 50) == (3 * 1050,) * 4


def test_a_slow_link_slows_all_and_the_member_behind_it_ends_last():
    """Half the bandwidth into member 2: 6 rounds of 2 µs there. Member 3 needs what 2 had after 5 rounds, and so on."""
    assert ends(ring("all_reduce", 4, 4000), (1e9, 1e9, 0.5e9, 1e9), 0) == (10_000, 9000, 12_000, 11_000)


def test_a_collective_transfers_once_all_have_come_and_ends_on_all_at_once():
    traces, _ = simulate(replace(QUIET, straggler=Straggler(1, 0, "compute", 0.5, "all")))
    first, late, third, fourth = (next(event for event in events if "AllReduce" in event.name) for events in traces)

    assert first.end == late.end == third.end == fourth.end
    assert late.begin > max(first.begin, third.begin, fourth.begin)
    # The bucket of 26,214,400 bytes: 6 rounds of a quarter at 200 GB/s, and 8 µs each.
    assert late.end - late.begin == 6 * (6_553_600 / 200 + 8_000)


def test_what_slower_kernels_cost():
    """The rank's kernels take half as long again: 4 layers x 3 x 0.6 ms, the optimizer's 0.4 ms and a copy's 20 µs."""
    spec = replace(QUIET, straggler=Straggler(2, 0, "compute", 0.5, "all"))

    assert cost_ns(spec) == pytest.approx(0.5 * (4 * 3 * 600_000 + 400_000 + 20_000), rel=0.01)
    later = replace(spec, straggler=replace(spec.straggler, since=2))
    assert cost_ns(later) == pytest.approx(cost_ns(spec), rel=0.01)


@pytest.mark.parametrize("device", [True, False], ids=["device", "host"])
def test_what_a_slow_loader_and_a_pause_cost(device):
    """The host waits for all at the end of a step: what it loses at the begin of one is lost by all."""
    model = replace(QUIET.model, forward_ns=20_000, parameter_bytes=1 << 16, optimizer_ns=4_000)
    quiet = replace(QUIET, device=device, model=model)

    assert cost_ns(replace(quiet, straggler=Straggler(0, 0, "input", 2.0))) == pytest.approx(600_000, rel=0.01)
    paused = replace(quiet, straggler=Straggler(3, 0, "host", 1.0, "pause"))
    assert cost_ns(paused) == pytest.approx(1_000_000, rel=0.05)


@pytest.mark.parametrize("device", [True, False], ids=["device", "host"])
@pytest.mark.parametrize("parallel, group", [("ddp", 0), ("fsdp", 0), ("fsdp", 2), ("pipeline", 0), ("pipeline", 2),
                                             ("tensor", 0), ("tensor", 2)])  # fmt: skip
@pytest.mark.parametrize("cause, size", [("compute", 1.0), ("communication", 500.0)])
def test_a_straggler_slows_the_steps_from_its_first_one_on_in_every_form(parallel, group, device, cause, size):
    bad = Straggler(0, 1, cause, size, "all")
    model = Model(layers=1, python_ns=2_000, parameter_bytes=1 << 20, activation_bytes=1 << 18)
    spec = replace(QUIET, steps=2, parallel=parallel, group=group, device=device, microbatches=2, model=model,
                   straggler=bad)  # fmt: skip
    usual = step_times(replace(spec, straggler=None))
    times = step_times(spec)

    assert times[0] == usual[0]
    assert times[1] > 1.02 * usual[1]


def test_a_hiccup_costs_one_step():
    usual = step_times(QUIET)
    times = step_times(replace(QUIET, hiccups=(Hiccup(1, 1, "compute", 3_000_000),)))

    assert times[1] - usual[1] == pytest.approx(3_000_000, rel=0.01)
    assert (times[0], times[2]) == (usual[0], usual[2])


def test_files_have_the_clocks_of_their_hosts_and_can_be_read(tmp_path):
    spec = replace(QUIET, clocks=Clocks(2, (0, 3_000_000)), straggler=Straggler(2, 1, "input", 5.0))
    traces, truth = simulate(spec)
    files = chrome_files.write(spec, traces, tmp_path, compress=True)

    read_traces = [read(path) for path in files]
    kernels = [trace.matching(lambda name: "AllReduce" in name, trace.device_rows()) for trace in read_traces]
    ends_ns = [int(trace.end[rows].max()) for trace, rows in zip(read_traces, kernels, strict=True)]

    assert [path.name for path in files] == [f"rank{rank}.json.gz" for rank in range(4)]
    assert ends_ns == [ends_ns[0], ends_ns[0], ends_ns[0] + 3_000_000, ends_ns[0] + 3_000_000]
    assert truth.straggler == {"rank": 2, "since_step": 3, "cause": "input", "cost_ns": cost_ns(spec)}


def test_the_same_set_is_the_same_file():
    spec = generated_sets.made("none-001")
    one, other = (json.dumps(chrome_files.chrome_trace(spec, 3, simulate(spec)[0][3])) for _ in range(2))

    assert one == other
