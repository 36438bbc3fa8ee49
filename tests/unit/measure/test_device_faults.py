"""Single faults in the code of devices, each of which a named test must notice.

The list was written before those tests: what can be wrong with events, waiting, memory, profiles, turns and the machine
ID while everything still runs.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from plugin.project import Running, surroundings
from plugin.warm import shared

ROOT = Path(__file__).resolve().parents[3]
DEVICE, TIMED, COUNTED, PROFILED, PROGRAM, ENVIRONMENT, CASES, DELAY = (
    f"pytest_perfdl.measure.{name}"
    for name in (
        *("device", "timed_pass", "counted_pass", "profiled_pass", "program", "environment", "cases"),
        "injected_delay",
    )
)
STATE, CALLING = "pytest_perfdl.machine.device_state", "pytest_perfdl.fixture.calling"
RECORD = "pytest_perfdl.analysis.events.device_record"
PASSES, ITSELF = "tests/unit/measure/test_device_passes.py", "tests/unit/measure/test_device.py"
WATCH, RETRIED = "tests/unit/machine/test_device_state.py", "tests/unit/measure/test_profiled_pass.py"
GRAPHS = "tests/unit/analysis/events/test_device_record.py"

FAULTS = {
    "no wait for other streams before a block's last step ends": (
        TIMED,
        "durations[-1] += self._late",
        "pass",
        f"{PASSES}::test_work_on_a_stream_that_nothing_waits_for_belongs_to_the_last_step",
    ),
    "events on the default stream": (
        DEVICE,
        "event.record()",
        "event.record(self._module.default_stream())",
        f"{ITSELF}::test_events_are_of_the_stream_that_is_current",
    ),
    "the unit of elapsed time": (
        DEVICE,
        "* 1e6)",
        "* 1e3)",
        f"{PASSES}::test_a_step_is_what_the_stream_does_and_the_host_runs_ahead",
    ),
    "a peak that is not reset": (
        COUNTED,
        "used.forget_peak()",
        "pass",
        f"{PASSES}::test_memory_is_counted_by_the_devices_allocator",
    ),
    "memory of the current device alone": (
        DEVICE,
        "found = [read(index) for index in self.used]",
        "found = [read(self.index)]",
        f"{PASSES}::test_memory_of_a_step_on_two_devices_is_that_of_both",
    ),
    "the peak of one device alone is reset": (
        DEVICE,
        "self._module.reset_peak_memory_stats(index)",
        "self._module.reset_peak_memory_stats(self.index)",
        f"{ITSELF}::test_memory_of_several_devices_is_added_up",
    ),
    "a peak without what the steps began with": (
        COUNTED,
        "after.peak - before.allocated",
        "after.peak",
        f"{PASSES}::test_memory_is_counted_by_the_devices_allocator",
    ),
    "a wait around every step": (
        TIMED,
        "return _DeviceClock(used, compiled)",
        "return _WaitingClock(used, run_delay_ns, compiled)",
        f"{PASSES}::test_a_step_is_what_the_stream_does_and_the_host_runs_ahead",
    ),
    "the host's clock for a device": (
        TIMED,
        "if used is None:\n        return _HostClock",
        "if used:\n        return _HostClock",
        f"{PASSES}::test_a_step_is_what_the_stream_does_and_the_host_runs_ahead",
    ),
    "the current device alone is waited for": (
        DEVICE,
        "tuple(sorted({index, *_holding_memory(module, others)}))",
        "(index,)",
        f"{PASSES}::test_a_block_ends_when_all_used_devices_are_idle",
    ),
    "asking opens the device": (
        DEVICE,
        "return bool(module.is_initialized())",
        "return bool(module.init() or module.is_initialized())",
        f"{ITSELF}::test_asking_for_the_device_initializes_none",
    ),
    "what an allocator does not count is none": (
        DEVICE,
        "if peak and not allocations:",
        "if False:",
        f"{ITSELF}::test_an_allocator_that_counts_nothing_says_so",
    ),
    "a warm-up that only looks at launches": (
        PROGRAM,
        "medians.append(statistics.median(typical))",
        "medians.append(statistics.median(durations))",
        f"{PASSES}::test_warming_up_goes_on_until_the_device_is_steady",
    ),
    "a profile of the host alone": (
        PROFILED,
        "activities=[ProfilerActivity.CPU, activity]",
        "activities=[ProfilerActivity.CPU]",
        f"{PASSES}::test_profiled_steps_have_kernels_and_launches",
    ),
    "a part of a device has the ID of the whole": (
        ENVIRONMENT,
        'parts["multiprocessors"] = found.multiprocessors',
        'parts["multiprocessors"] = 108',
        f"{PASSES}::test_a_part_of_a_device_is_another_machine",
    ),
    "blocks that overlap": (
        TIMED,
        "            clock.wait()\n",
        "",
        f"{PASSES}::test_blocks_do_not_overlap",
    ),
    "lost kernels pass for none": (
        PROFILED,
        "if profiled.device_busy_ns is None:",
        "if True:",
        f"{RETRIED}::test_two_profiles_that_lack_kernels_have_no_figures",
    ),
    "what empties the cache is part of the step": (
        TIMED,
        "        used = _used_by(work)\n        self.mark()\n",
        "        used = _used_by(work)\n",
        f"{PASSES}::test_emptying_the_cache_makes_steps_cold_and_is_no_part_of_them[True]",
    ),
    "memory that empties the cache is counted": (
        PROGRAM,
        "self._flush.free()",
        "pass",
        f"{PASSES}::test_the_memory_that_empties_caches_is_not_counted",
    ),
    "what prepares a step fills the cache again": (
        CALLING,
        "self._program.flush()",
        "pass",
        f"{PASSES}::test_the_cache_is_emptied_after_what_prepares_a_step",
    ),
    "work of setup that is not waited for": (
        CALLING,
        "self._synchronize()\n        self._range",
        "self._range",
        f"{PASSES}::test_what_setup_launches_is_no_part_of_the_step",
    ),
    "work of a step is that of the next one's setup": (
        CALLING,
        "self._synchronize()\n        self._start_ns",
        "self._start_ns",
        f"{PASSES}::test_setup_of_a_step_that_warms_up_does_not_wait_for_the_step_before",
    ),
    "calls are numbered by their launches": (
        PROGRAM,
        "aside = (yield False) or NOTHING\n                device.synchronize()",
        "aside = (yield False) or NOTHING",
        f"{PASSES}::test_calls_of_a_step_are_numbered_by_what_the_device_does",
    ),
    "a delay beside the device's work": (
        DELAY,
        "device.synchronize()",
        "pass",
        f"{PASSES}::test_a_delay_begins_when_the_device_is_idle",
    ),
    "a case that is not waited for": (
        CASES,
        "used.synchronize()",
        "pass",
        f"{PASSES}::test_a_case_of_a_table_ends_when_the_device_is_idle",
    ),
    "kernels of the call before are those of a case": (
        CASES,
        "device.synchronize()  # kernels of the call before would run in the range of this one",
        "pass",
        f"{PASSES}::test_kernels_of_a_case_are_those_of_its_call",
    ),
    "ranges on the device's timeline count as kernels": (
        CASES,
        "is_kernel = not is_range and not",
        "is_kernel = not",
        f"{PASSES}::test_kernels_of_a_case_are_those_of_its_call",
    ),
    "replays of a graph that lack kernels pass for complete": (
        RECORD,
        "    _compare_replays(trace, row, calls.events, expected, missing)\n",
        "",
        f"{GRAPHS}::test_replays_of_a_graph_that_lost_nodes",
    ),
    "a rule that withholds rounds for one side": (
        STATE,
        "(*self.base.others, *self.head.others)",
        "self.head.others",
        f"{WATCH}::test_a_round_is_withheld_by_a_rule_that_is_the_same_if_the_sides_are_swapped",
    ),
    "counters of violations since the driver was loaded": (
        STATE,
        "(now - then)",
        "now",
        f"{WATCH}::test_counters_of_violations_are_read_before_and_after",
    ),
    "counters of AMD's firmware as if they were nanoseconds": (
        STATE,
        "/ (end - begin)",
        "/ wall_ns",
        f"{WATCH}::test_counters_of_amd_are_shares_of_the_time_that_was_counted",
    ),
    "the server of MPS as a process of others": (
        STATE,
        " if name != _MPS_SERVER",
        "",
        f"{WATCH}::test_the_server_of_mps_is_no_process_of_others_and_other_clients_are[ours]",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault, tmp_path):
    module, old, new, test = FAULTS[fault]
    told = json.dumps({"module": module, "old": old, "new": new})
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    # What forks the run has imported modules of these tests.
    quiet = "ignore::pytest.PytestAssertRewriteWarning"
    options = ("-q", "-p", "stand_in.mutant", "-p", "no:cacheprovider", "-W", quiet)
    done = Running(
        [sys.executable, "-m", "pytest", *options, test],
        ROOT,
        surroundings(PERFDL_MUTANT=told, PYTHONPATH=path),
        shared("pytest", "numpy", "torch"),
        log=tmp_path / "output.txt",
    ).finish()
    name = test.partition("::")[2]
    assert done.code == 1, done.output
    assert f"FAILED {test}" in done.output, f"{name} does not notice {fault}:\n{done.output}"
