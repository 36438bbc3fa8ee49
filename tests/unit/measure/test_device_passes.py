"""The timed and the counted pass on the stand-in, whose times are known exactly."""

import functools
from types import SimpleNamespace

import pytest
import torch
from stand_in import stand_in_gpu
from stand_in.stand_in_gpu import Card, Setup

from pytest_perfdl.fixture import calling
from pytest_perfdl.machine import state
from pytest_perfdl.machine.state import Usage
from pytest_perfdl.measure import (
    calibration,
    cases,
    counted_pass,
    device,
    environment,
    flushing,
    injected_delay,
    memory_pass,
    profiled_pass,
    program,
    timed_pass,
)
from pytest_perfdl.measure.commands import Attribute, Calibrate, Count, DescribeCases, Profile, Settle, Time
from pytest_perfdl.measure.loops import Aside
from pytest_perfdl.model.record import Finding
from pytest_perfdl.system import clocks

from .answers import Conversation

MS = 1_000_000


@pytest.fixture
def simulate(monkeypatch):
    """Puts a stand-in into torch, which is used, and lets the package read its clock."""
    installed = []

    def put(operators=True, clock=None, **setup):
        gpu = stand_in_gpu.Gpu(Setup(jitter=0, **setup), clock or stand_in_gpu.ManualClock())
        installed.append(stand_in_gpu.install(gpu, operators=operators))
        for module in (timed_pass, clocks, program, calling, cases):
            monkeypatch.setattr(module, "perf_counter_ns", gpu.clock.now)
        device.initialize("cuda")
        return gpu

    yield put
    for each in installed:
        each.remove()


def drive(steps, step):
    """Run a pass; `step` gets the number of each."""
    number, aside = 0, None
    while True:
        try:
            steps.send(aside)
        except StopIteration as stop:
            return stop.value
        aside = step(number)
        number += 1


def timed(step, *, blocks=1, block=4, prepares=False, flush=None):
    return drive(timed_pass.run(Time(blocks, block), iterates=False, prepares=prepares, flush=flush), step)


def test_a_step_is_what_the_stream_does_and_the_host_runs_ahead(simulate):
    gpu = simulate()
    begun, taken = gpu.clock.now(), (3 * MS, 5 * MS, 4 * MS, 3 * MS)
    waited = []

    def step(number):
        waited.append(gpu.clock.now() - begun)
        gpu.launch("work", taken[number])

    found = timed(step)
    assert found.step_ns == pytest.approx(taken, rel=0.002)
    # All four are launched before the first has ended.
    assert waited[-1] < MS
    (block,) = found.blocks
    assert block.wall_ns == pytest.approx(15 * MS, rel=0.01)
    assert found.delay_ns == ()
    assert not found.findings


def test_a_wait_for_a_value_is_part_of_its_step(simulate):
    gpu = simulate()
    number = torch.ones(1, device="cuda")

    def step(index):
        gpu.launch("work", 2 * MS)
        if index % 2:
            number.item()
            gpu.clock.moment += 3 * MS  # what the host does while the device is idle

    assert timed(step).step_ns == pytest.approx((2 * MS, 5 * MS) * 2, rel=0.02)


def test_work_on_a_stream_that_nothing_waits_for_belongs_to_the_last_step(simulate):
    gpu = simulate()
    side = torch.cuda.Stream()

    def step(_):
        gpu.launch("work", 2 * MS)
        with torch.cuda.stream(side):
            gpu.launch("on the side", 3 * MS)

    found = timed(step, block=2)
    # The stream on the side ends after six milliseconds.
    assert found.step_ns == pytest.approx((2 * MS, 4 * MS), rel=0.02)
    assert found.blocks[0].wall_ns == pytest.approx(6 * MS, rel=0.01)


def test_a_step_that_changes_the_stream_is_timed_on_the_one_that_it_ends_on(simulate):
    gpu = simulate()
    side = torch.cuda.Stream()

    def step(_):
        torch.cuda.set_stream(side)
        gpu.launch("work", 2 * MS)

    assert timed(step, block=3).step_ns == pytest.approx((2 * MS,) * 3, rel=0.02)


def test_a_block_ends_when_all_used_devices_are_idle(simulate):
    gpu = simulate(cards=[Card(), Card()])
    with torch.cuda.stream(torch.cuda.Stream(1)):
        held = torch.ones(4, device="cuda")

    def step(_):
        gpu.launch("work", 2 * MS)
        gpu.free[1, 0] = max(gpu.free[1, 0], gpu.clock.now()) + 4 * MS

    assert timed(step, block=2).blocks[0].wall_ns == pytest.approx(8 * MS, rel=0.01)
    assert gpu.clock.now() >= max(gpu.free.values())
    del held


def test_blocks_do_not_overlap(simulate):
    gpu = simulate()
    ends = []

    def step(number):
        if number % 2 == 0:
            # The mark before the first step is an event itself.
            ends.append(max(gpu.free.values()) <= gpu.clock.now() + stand_in_gpu.LATENCY_NS)
        gpu.launch("work", 2 * MS)

    found = timed(step, blocks=3, block=2)
    assert ends == [True] * 3
    assert max(gpu.free.values()) <= gpu.clock.now()
    assert [block.wall_ns for block in found.blocks] == pytest.approx([4 * MS] * 3, rel=0.01)


def test_without_times_of_events_every_step_is_waited_for_and_a_note_says_so_once(simulate):
    gpu = simulate(lacks=["timing"])
    found = timed(lambda _: gpu.launch("work", 2 * MS) and None, blocks=2, block=3)
    assert found.step_ns == pytest.approx((2 * MS,) * 6, rel=0.01)
    assert found.findings == (
        Finding(
            "note",
            "no-events",
            "events of cuda:0 have no times, so every step was waited for: what the CPU launches ahead is lost",
        ),
    )


def test_what_is_prepared_between_steps_does_not_count(simulate):
    gpu = simulate()

    def step(_):
        begun = gpu.clock.now()
        gpu.launch("preparing", 7 * MS)
        device.synchronize()
        setup = gpu.clock.now() - begun
        gpu.launch("work", 2 * MS)
        return Aside(setup=Usage(setup, 0, 0, 0, 0))

    found = timed(step, prepares=True)
    assert found.step_ns == pytest.approx((2 * MS,) * 4, rel=0.01)
    assert found.findings == ()


CACHING = Card(L2_cache_size=2**20, cache_gain=4.0)
MISSED = 2**18 / CACHING.bytes_per_s * 1e9
"""Nanoseconds that a sum of 256 KiB takes that are not in the cache."""


@pytest.mark.parametrize("cold", [True, False])
def test_emptying_the_cache_makes_steps_cold_and_is_no_part_of_them(simulate, cold):
    gpu = simulate(cards=[CACHING])
    held = torch.ones(2**16, device="cuda")
    held.sum()
    device.synchronize()
    begun, launched = gpu.clock.now(), []

    def step(_):
        held.sum()
        launched.append(gpu.clock.now() - begun)

    found = timed(step, flush=flushing.Flush() if cold else None)
    assert found.step_ns == pytest.approx([MISSED if cold else MISSED / 4] * 4, rel=0.02)
    assert found.blocks[0].wall_ns == pytest.approx(sum(found.step_ns), rel=0.02)
    # All are launched before the first has ended, with what empties the cache between them.
    assert launched[-1] < MS


def test_cold_steps_with_one_input_take_as_long_as_warm_ones_with_inputs_that_take_turns(simulate):
    simulate(cards=[CACHING])
    # Together twice as large as the cache.
    inputs = [torch.ones(2**16, device="cuda") for _ in range(8)]
    turns = timed(lambda number: inputs[number % 8].sum() and None, block=16)
    cold = timed(lambda _: inputs[0].sum() and None, block=16, flush=flushing.Flush())
    assert cold.step_ns == pytest.approx(turns.step_ns, rel=0.02)


def test_without_times_of_events_emptying_the_cache_is_waited_for(simulate):
    simulate(cards=[CACHING], lacks=["timing"])
    held = torch.ones(2**16, device="cuda")
    found = timed(lambda _: held.sum() and None, flush=flushing.Flush())
    assert found.step_ns == pytest.approx([MISSED] * 4, rel=0.02)


def test_the_cache_is_emptied_after_what_prepares_a_step(simulate):
    simulate(cards=[CACHING])
    held = torch.ones(2**16, device="cuda")
    host = Conversation(Time(1, 4))
    made = program.Program(host, prepares=True, flush=flushing.Flush())
    calling.run_prepared(made, lambda: held.sum(), (), {}, setup=lambda: held.sum() and None)
    assert host.answers[0].step_ns == pytest.approx([MISSED] * 4, rel=0.02)


def test_the_memory_that_empties_caches_is_not_counted(simulate, tmp_path):
    simulate(cards=[CACHING], operators=True)
    held = torch.ones(2**16, device="cuda")
    host = Conversation(Settle(2, 4, 2), Time(1, 4), Count(2, str(tmp_path), flops=False))
    for _ in program.Program(host, flush=flushing.Flush()).steps():
        held.sum()
    settled, timing, counted, _ = host.answers
    assert settled.step_ns == pytest.approx(MISSED, rel=0.02)
    assert timing.step_ns == pytest.approx([MISSED] * 4, rel=0.02)
    assert (counted.counts["static_memory"], counted.counts["peak_memory"]) == (2**18, 2**18 + 512)


@pytest.mark.long
def test_profiled_steps_are_cold_and_have_no_kernel_that_empties_the_cache(simulate, tmp_path):
    simulate(cards=[CACHING], clock=stand_in_gpu.HostClock())
    held = torch.ones(2**16, device="cuda")
    host = Conversation(Profile(3, 1, str(tmp_path), exemplar=False))
    for _ in program.Program(host, flush=flushing.Flush()).steps():
        held.sum()
    profiled, _ = host.answers
    assert profiled.counts["kernels"] == profiled.counts["ops"] == (1, 1, 1)
    assert profiled.device_busy_ns == pytest.approx([MISSED] * 3, rel=0.05)


def test_what_setup_launches_is_no_part_of_the_step(simulate):
    gpu = simulate()
    host = Conversation(Time(1, 4))
    calling.run_prepared(
        program.Program(host, prepares=True),
        lambda: gpu.launch("work", 2 * MS),
        (),
        {},
        setup=lambda: gpu.launch("preparing", 7 * MS) and None,
    )
    assert host.answers[0].step_ns == pytest.approx([2 * MS] * 4, rel=0.01)


def test_setup_of_a_step_that_warms_up_does_not_wait_for_the_step_before(simulate):
    gpu = simulate()
    host = Conversation(Settle(least=4, most=4, block=4))
    calling.run_prepared(
        program.Program(host, prepares=True), lambda: gpu.launch("work", 2 * MS), (), {}, setup=lambda: None
    )
    assert host.answers[0].step_ns == pytest.approx(2 * MS, rel=0.01)


def test_calls_of_a_step_are_numbered_by_what_the_device_does(simulate):
    gpu = simulate()
    host = Conversation(Calibrate(least_ns=5 * MS, most=64))
    steps = program.Program(host)
    for _ in steps.steps():
        for _ in range(steps.loops):
            gpu.launch("work", MS)
    assert host.answers[0].loops == 8


def test_a_delay_begins_when_the_device_is_idle(simulate, monkeypatch):
    gpu = simulate()

    def now():
        gpu.clock.moment += 1000
        return gpu.clock.moment

    monkeypatch.setattr(injected_delay, "perf_counter_ns", now)
    delay = injected_delay.Delay(0.5)
    delay.wait_ns = 3 * MS
    begun = gpu.clock.now()
    gpu.launch("work", 2 * MS)
    delay.wait()
    assert gpu.clock.now() - begun == pytest.approx(5 * MS, rel=0.01)


def test_a_case_of_a_table_ends_when_the_device_is_idle(simulate):
    gpu = simulate()
    gpu.launch("before", 9 * MS)
    assert cases._steps(cases.Calls(lambda: gpu.launch("work", 2 * MS)), 3, 2) == pytest.approx((6 * MS,) * 2, rel=0.01)


@pytest.mark.long
def test_kernels_of_a_case_are_those_of_its_call(simulate):
    # Kernels take longer than a busy host pauses: those of the call before a range still run when it begins.
    simulate(clock=stand_in_gpu.HostClock(), slow=300)
    batch = torch.ones(64, 64, device="cuda")

    def open_case(case):
        return {
            "one": lambda: batch.relu(),
            "two": lambda: torch.mm(batch, batch).relu(),
            "copy": lambda: batch.cpu(),
        }[case]

    host = Conversation(DescribeCases(("one", "two", "copy")))
    cases.TableProgram(host, open_case, work_of=lambda _: None, check=lambda _: None, seed=0).run()
    assert host.answers[0].kernels == {"one": 1, "two": 2, "copy": 0}


@pytest.mark.parametrize("precision, dtype", [("highest", "float32"), ("high", "tf32")])
def test_the_element_type_of_a_case_is_that_of_its_products_on_a_device(simulate, monkeypatch, precision, dtype):
    simulate()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    assert cases._element_type(functools.partial(torch.mm, torch.ones(2, 2), torch.ones(2, 2))) == dtype


def test_warming_up_goes_on_until_the_device_is_steady(simulate):
    gpu = simulate()
    host = Conversation(Settle(least=2, most=20, block=2, seconds=1.0))
    # Launching takes the same time in each; the clocks of the device rise.
    taken = iter([9, 9, 6, 6, 4, 4, 4, 4, *[4] * 20])
    for _ in program.Program(host).steps():
        gpu.clock.moment += MS // 10
        gpu.launch("work", next(taken) * MS)
    settled = host.answers[0]
    assert (settled.steps, settled.settled) == (8, True)
    assert settled.step_ns == pytest.approx(4 * MS, rel=0.05)


def counted(step, tmp_path, *, flops=False, steps=2):
    return drive(counted_pass.run(Count(steps, str(tmp_path), flops=flops)), step)


def test_memory_is_counted_by_the_devices_allocator(simulate, tmp_path):
    simulate()
    kept = torch.empty(2**20, dtype=torch.uint8, device="cuda")
    torch.empty(2**24, dtype=torch.uint8, device="cuda")  # a peak before the steps

    def step(_):
        torch.empty(2**21, dtype=torch.uint8, device="cuda")
        torch.empty(2**22, dtype=torch.uint8, device="cuda")

    found = counted(step, tmp_path)
    assert found.counts == {
        "allocations": 2,
        "alloc_bytes": 2**21 + 2**22,
        "peak_memory": 2**20 + 2**22,
        "static_memory": 2**20,
    }
    assert found.findings == ()
    del kept


def test_memory_of_a_step_on_two_devices_is_that_of_both(simulate, tmp_path):
    simulate(cards=[Card(), Card(), Card()])
    weights = [torch.ones(256, 1024, device=f"cuda:{index}") for index in (0, 1)]
    size = weights[0].untyped_storage().nbytes()

    def step(_):
        # A pipeline of two stages: the output of the first one is copied to the second one.
        first = weights[0] * 2
        ((first.to("cuda:1") * weights[1]) * 2).sum()

    found = counted(step, tmp_path)
    # The weight and the output on the first device; on the second one the weight, and two of the copy and the products.
    assert found.counts == {
        "allocations": 5,
        "alloc_bytes": 4 * size + 512,
        "peak_memory": 2 * size + 3 * size,
        "static_memory": 2 * size,
    }


@pytest.mark.parametrize("cards, said", [(1, ()), (2, ("the breakdown is of cuda:0, without cuda:1",))])
def test_a_breakdown_of_memory_says_which_devices_it_leaves_out(simulate, cards, said):
    simulate(cards=[Card()] * cards)
    kept = [torch.ones(256, device=f"cuda:{index}") for index in range(cards)]
    found = drive(memory_pass.run(Attribute(steps=1, growth=False)), lambda _: kept[0] * 2)
    assert found.account.device == "cuda:0"
    assert tuple(note for note in found.account.notes if "breakdown" in note) == said


@pytest.mark.long
def test_steps_for_the_exemplar_are_others_than_those_that_the_allocator_counts(simulate, tmp_path):
    simulate(clock=stand_in_gpu.HostClock())

    def step():
        torch.empty(2**20, dtype=torch.uint8, device="cuda")

    profiling = Conversation(Profile(2, 1, str(tmp_path), exemplar=True))
    for _ in program.Program(profiling).steps():
        step()
    counting = Conversation(Count(2, str(tmp_path), flops=False, exemplar=profiling.answers[0].exemplar))
    steps = len([step() for _ in program.Program(counting).steps()])
    # Two windows under the profiler, and one that the allocator counts.
    assert steps == 6
    assert counting.answers[0].counts["peak_memory"] == 2**20
    assert counting.answers[0].findings == ()


@pytest.mark.long
def test_growth_is_what_every_period_keeps(simulate, tmp_path):
    simulate()
    kept = []
    found = counted(lambda _: kept.append(torch.empty(1024, dtype=torch.uint8, device="cuda")), tmp_path, flops=True)
    assert found.counts[counted_pass.GROWTH] == 1024


def test_what_an_allocator_does_not_count_is_absent_with_a_note(simulate, tmp_path):
    simulate(operators=False)
    torch.cuda.current_allocated_memory = lambda: 512
    try:
        del torch.cuda.memory_stats
        found = counted(lambda _: None, tmp_path)
    finally:
        del torch.cuda.current_allocated_memory
        torch.cuda.memory_stats = None
    assert found.counts == {"static_memory": 512}
    (note,) = found.findings
    assert note.message == (
        "the number and bytes of allocations and peak memory could not be measured (the allocator of cuda:0 does not "
        "count them); other metrics are not affected"
    )


def profiled(step, tmp_path):
    return drive(profiled_pass.run(Profile(3, 1, str(tmp_path), exemplar=False)), step)


def test_profiled_steps_have_kernels_and_launches(simulate, tmp_path):
    simulate(clock=stand_in_gpu.HostClock())
    left, right = (torch.ones(64, 64, device="cuda") for _ in range(2))
    found = profiled(lambda _: (torch.mm(left, right).relu(), None)[1], tmp_path)
    assert found.counts["kernels"] == found.counts["launches"] == found.counts["ops"] == (2, 2, 2)
    assert all(0 < busy <= whole for busy, whole in zip(found.device_busy_ns, found.step_ns, strict=True))
    assert {"device_busy", "launch_gap"} <= found.device.keys()
    assert not [each for each in found.findings if each.level == "invalid"]


def test_a_device_that_is_not_traced_has_no_figures_of_the_device(simulate, tmp_path):
    simulate(lacks=["tracing"])
    left = torch.ones(64, 64, device="cuda")
    found = profiled(lambda _: (left.relu(), None)[1], tmp_path)
    assert not {"kernels", "launches", "kernel_time"} & found.counts.keys()
    assert found.counts["ops"]
    assert found.device_busy_ns is None


def test_where_kernels_are_lost_every_time_a_profile_has_no_figures(simulate, tmp_path):
    simulate(clock=stand_in_gpu.HostClock(), lose_kernels=2)
    left = torch.ones(64, 64, device="cuda")
    found = profiled(lambda _: ([left.relu() for _ in range(4)], None)[1], tmp_path)
    (note,) = [each for each in found.findings if each.code == "kernels-lost"]
    assert "kernel launches" in note.message
    assert found.step_ns == ()


def test_the_rates_of_a_device_are_those_of_its_kernels(simulate, monkeypatch):
    card = Card(flops_per_s=2e8, bytes_per_s=5e8, L2_cache_size=2**20)
    simulate(cards=[card])
    quiet = state.Load(wall_s=2.0, others_s=0.0, helpers_s=0.0)
    monkeypatch.setattr(state.Busy, "since", lambda *_: quiet)
    for name, value in {"SIDES": (64, 128), "LARGEST_SET": 2**21, "REPEAT_NS": 20 * MS, "_EVENTS": 10}.items():
        monkeypatch.setattr(calibration, name, value)
    assert calibration.place(on_device=True) == "cuda"
    key = calibration.prepare(torch.get_num_threads(), "cuda")
    assert key.startswith("stand-in-gpu-108sm-x1-")
    found = calibration.calibrate(key, "cuda", seconds=0.01)
    assert found.flops_per_s == pytest.approx(dict.fromkeys(found.flops_per_s, 2e8), rel=0.01)
    # A sum reads all of its working set, and writes next to nothing.
    assert dict(found.bandwidths) == pytest.approx({2**18: 5e8, 2**20: 5e8, 2**21: 5e8}, rel=0.01)
    assert found.cache_bytes == 2**20


def test_a_device_that_does_not_tell_its_cache_is_taken_to_have_a_small_one(simulate):
    simulate(cards=[Card(L2_cache_size=0)])
    assert flushing.cache_bytes("cuda") == flushing._UNKNOWN_CACHE


def test_rates_of_a_device_that_is_not_there(capsys, tmp_path):
    assert calibration.main(["1", "device", str(tmp_path / "machine.json"), "0"]) == 1
    assert capsys.readouterr().err == "torch finds no GPU\n"


def test_kernels_that_an_operator_launches_are_replayed_on_the_device(simulate):
    simulate()
    dims = [[64, 64], [64, 64]]
    call = calibration.Recorded("aten::mm", dims, ["float", "float"], [[64, 1], [64, 1]], ["", ""])
    (found,) = calibration.ratios({"mm": call}, "bfloat16", "cuda")
    # The stand-in's products take as long in any element type.
    assert found == ("mm", pytest.approx((1.0, 1.0, 1.0), rel=0.01))


@pytest.mark.parametrize("size", [108, 14])
def test_a_part_of_a_device_is_another_machine(simulate, size):
    simulate(cards=[Card(multi_processor_count=size, total_memory=size * 2**27)])
    key, context = environment.describe(1, ())
    assert key.slug.startswith(f"stand-in-gpu-{size}sm-x1-")
    assert (key.parts["multiprocessors"], key.parts["memory_gib"]) == (size, round(size / 8))
    assert context["device"] == "cuda"


def test_a_device_whose_size_is_unknown_is_named_alone(monkeypatch):
    metal = SimpleNamespace(properties=lambda: device.Properties("Apple M4", 1, None, None, None))
    monkeypatch.setattr(device, "current", lambda: metal)
    assert environment._accelerators() == {"accelerator": "Apple M4", "accelerators": 1}


def test_element_types_that_a_device_does_not_multiply_have_no_rate(monkeypatch):
    def product(name, dtype, side, device):
        raise RuntimeError('"addmm_impl_cpu_" not implemented')

    monkeypatch.setattr(calibration, "_product", product)
    assert list(calibration._products("cuda")) == []
