"""What is read of the machine, the compiler and the clock, without any of them in the way."""

import gc
import hashlib
import os
import random
import subprocess
import sys
import threading
import types
from dataclasses import replace

import numpy as np
import pytest

from pytest_perfdl.machine import state
from pytest_perfdl.measure import compiling, environment, timed_pass
from pytest_perfdl.measure.environment import profiler_chatter


@pytest.fixture
def ticking(monkeypatch):
    """A clock that is told how long each step takes and how much of it other processes used the CPU."""

    class Ticking:
        def __init__(self):
            self.now = self.delayed = self.asked = 0
            self.clock = timed_pass._HostClock(self.delay, compiling.Watch())

        def delay(self):
            self.asked += 1
            return self.delayed

        def step(self, taken, delayed=0):
            self.now += taken
            self.delayed += delayed
            self.clock.mark(1)

    ticking = Ticking()
    ticking.now = 1
    monkeypatch.setattr(timed_pass, "perf_counter_ns", lambda: ticking.now)
    ticking.clock.mark()
    return ticking


def test_the_hosts_clock(ticking):
    ticking.step(200_000, 0)
    ticking.step(900_000, 650_000)
    ticking.step(100_000, 0)

    assert ticking.clock.durations_ns() == [200_000, 900_000, 100_000]
    assert ticking.clock.delays_ns() == [0, 650_000, 0]


def test_the_scheduler_is_not_asked_about_short_steps(ticking):
    asked = ticking.asked
    for _ in range(5):
        ticking.step(99_999)

    assert ticking.asked == asked
    assert ticking.clock.delays_ns() == [0] * 5


def test_the_scheduler_can_be_asked():
    with state.run_delay_reader() as read:
        first = read()
        assert 0 <= first <= read()


def test_where_there_is_no_scheduler_to_ask(monkeypatch):
    monkeypatch.setattr(state, "_SCHEDULER", "/no/such/file")
    with state.run_delay_reader() as read:
        assert read() == 0


def busy(wall, everybody, group, thread):
    return state.Busy(float(wall), float(everybody), float(group), float(thread))


def test_who_used_the_processors():
    # In ten seconds all were busy for 14 processor seconds, of which 9 were ours, 6 of them the step's own.
    load = busy(110, 64, 29, 16).since(busy(100, 50, 20, 10))
    assert (load.wall_s, load.others_s, load.helpers_s) == (10, 5, 3)
    assert load.others == pytest.approx(0.5)
    assert load.helpers == pytest.approx(0.3 - 0.1)
    assert busy(110, 64, 29, 16).since(None) is None


def test_ticks_that_contradict_each_other_are_nobodys_load():
    load = state.Load(1.0, -0.02, -0.02)
    assert (load.others, load.helpers) == (0, 0)


def test_windows_are_joined_before_anything_is_made_of_them():
    parts = [state.Load(0.05, 0.02, 0.01), state.Load(0.15, -0.01, 0.0)]
    joined = state.Load.joined(parts)
    assert (joined.wall_s, joined.others_s, joined.helpers_s) == pytest.approx((0.2, 0.01, 0.01))
    assert joined.is_telling
    assert not any(part.is_telling for part in parts)
    assert state.Load.joined([*parts, None]) is None
    assert state.Load.joined([]) is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
def test_only_processors_that_may_be_used_count(monkeypatch, tmp_path):
    monkeypatch.setattr(state.os, "sched_getaffinity", lambda _: {1})
    lines = "cpu  900 0 0 0 0 0 0 0 0 0\ncpu0 800 0 0 0 0 0 0 0 0 0\ncpu1 60 1 2 7 7 3 4 30 0 0\nintr 5\n"
    processes = {7: "7 (a) b) R 1 5 " + "0 " * 8 + "20 10 15 5", 8: "8 (c) R 1 6 " + "0 " * 8 + "9 9 9 9", 9: ""}
    files = {"stat": lines} | {f"{number}/stat": text for number, text in processes.items()}
    for name, text in files.items():
        (tmp_path / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / name).write_text(text)
    ticks = os.sysconf("SC_CLK_TCK")
    found = state.Busy.now((5,), tmp_path)
    assert (found.all_s, found.group_s) == (100 / ticks, 50 / ticks)


def test_where_nothing_is_counted(tmp_path):
    assert state.Busy.now(root=tmp_path) is None


THREAD_STAT = "4711 (a (tricky) name) R " + " ".join(str(number) for number in range(4, 53))
"""As in proc(5): the 39th field, the processor, is 39."""
STAT = "cpu  100 20 30 400 50 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
VMSTAT = "nr_free_pages 5\npswpin 30\npswpout 12\n"


def state_of(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return state.State.now(root)


def throttle(core, cause="core"):
    return f"sys/devices/system/cpu/cpu{core}/thermal_throttle/{cause}_throttle_count"


FREQUENCY = "sys/devices/system/cpu/cpu39/cpufreq/scaling_cur_freq"


def test_the_kernels_counters(tmp_path):
    files = {
        "proc/thread-self/stat": THREAD_STAT,
        "proc/stat": STAT,
        "proc/vmstat": VMSTAT,
        FREQUENCY: "2600123\n",
        throttle(0): "3\n",
        throttle(39): "7\n",
        throttle(39, "package"): "9\n",
    }
    before = state_of(tmp_path, files)
    assert (before.clock_mhz, before.swapped_pages) == (2600.123, 42)
    assert (before.busy_ticks, before.stolen_ticks) == (100 + 20 + 30 + 6 + 7 + 8, 8)
    assert before.throttled == {
        "cpu0/core_throttle_count": 3,
        "cpu39/core_throttle_count": 7,
        "cpu39/package_throttle_count": 9,
    }

    after = state_of(tmp_path, {
        "proc/stat": STAT.replace("100", "150").replace(" 8 0 0", " 18 0 0", 1),
        "proc/vmstat": VMSTAT.replace("30", "35"),
        FREQUENCY: "3200000\n",
        throttle(0): "5\n",
        throttle(2): "80\n",
    })  # fmt: skip
    assert replace(after.since(before), major_faults=0) == state.Surroundings(
        clocks_mhz=(2600.123, 3200.0), throttled=2, swapped_pages=5, stolen_ticks=10, busy_ticks=60
    )


def test_what_a_system_does_not_say(tmp_path):
    nothing = state_of(tmp_path, {})

    assert replace(nothing, major_faults=0) == state.State(None, {}, None, None, None, 0)
    assert nothing.since(nothing) == state.Surroundings()


@pytest.mark.parametrize(
    "files",
    [
        {"proc/thread-self/stat": "4711 (x) R 1 2", "proc/stat": "cpu 1 2 3", "proc/vmstat": "pswpin"},
        {"proc/thread-self/stat": THREAD_STAT, "proc/stat": "intr 1 2 3 4 5 6 7 8", "proc/vmstat": "pswpin 3\n"},
        {"proc/thread-self/stat": THREAD_STAT, FREQUENCY: "<unknown>", throttle(0): "?", "proc/vmstat": "pswpin a\n"},
        {"proc/thread-self/stat": THREAD_STAT, "proc/cpuinfo": "processor : 39\ncpu MHz : fast\n\nprocessor : 2"},
    ],
    ids=["short", "other", "words", "cpuinfo"],
)
def test_files_of_a_form_that_is_not_known_say_nothing(tmp_path, files):
    assert replace(state_of(tmp_path, files), major_faults=0) == state.State(None, {}, None, None, None, 0)


def test_the_clock_of_a_guest_without_cpufreq(tmp_path):
    blocks = [f"processor\t: {number}\nmodel name\t: CPU\ncpu MHz\t\t: {2000 + number}.5\n" for number in (0, 39, 40)]
    files = {"proc/thread-self/stat": THREAD_STAT, "proc/cpuinfo": "\n".join(blocks)}

    assert state_of(tmp_path, files).clock_mhz == 2039.5


def test_this_machines_counters_can_be_read():
    before = state.State.now()
    found = state.State.now().since(before)

    assert found.major_faults >= 0
    assert found.swapped_pages is None or found.swapped_pages >= 0


def test_surroundings_of_several_windows():
    one = state.Surroundings((2600.0,), throttled=1, swapped_pages=2, stolen_ticks=3, busy_ticks=40, major_faults=5)
    other = state.Surroundings((3000.0,), swapped_pages=1, stolen_ticks=1, busy_ticks=10, major_faults=1)

    assert state.Surroundings.joined([one, other]) == state.Surroundings(
        (2600.0, 3000.0), throttled=None, swapped_pages=3, stolen_ticks=4, busy_ticks=50, major_faults=6
    )


def test_a_tracer_is_seen():
    before = sys.gettrace()

    def tracing(frame, event, argument):
        return None

    sys.settrace(tracing)
    try:
        found = state.active_tracer()
    finally:
        sys.settrace(before)
    assert found == f"a trace function from {__name__}"


@pytest.mark.long
def test_what_walks_over_all_objects_is_counted():
    """Whatever of these a step does costs next to nothing once objects are frozen."""

    def walks(function):
        before = state.object_walks()
        function()
        return state.object_walks() - before

    automatic, enabled = gc.get_threshold(), gc.isenabled()
    gc.disable()
    try:
        assert walks(lambda: None) == walks(lambda: gc.collect(0)) == walks(gc.get_stats) == 0
        assert walks(gc.collect) == 1
        # Collections that nobody asks for, each generation's after the one before has been collected once.
        gc.set_threshold(100, 1, 1)
        gc.enable()
        assert walks(lambda: [[] for _ in range(len(gc.get_objects()) + 10_000)]) > 1
    finally:
        gc.set_threshold(*automatic)
        (gc.enable if enabled else gc.disable)()


def test_seeding_makes_numbers_repeat():
    before, numpy_before = random.getstate(), np.random.get_state()
    try:
        state.seed_everything(2**40)
        first = random.random(), np.random.random()
        state.seed_everything(2**40)
        assert (random.random(), np.random.random()) == first
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


def test_the_profilers_chatter_is_held_back_and_nothing_else(capfd):
    with profiler_chatter():
        os.write(2, b"USDT: profiler_start\nfrom the step\nSTAGE:2026 something\n")
    os.write(2, b"USDT: of the user's own\n")

    assert capfd.readouterr().err == "from the step\nUSDT: of the user's own\n"


def test_what_a_step_wrote_is_not_lost_when_it_raises(capfd):
    def step():
        with profiler_chatter():
            os.write(2, b"last words")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()
    assert capfd.readouterr().err == "last words"


PARTS = {"cpu": "AMD EPYC(TM) 7B13", "family": "25", "model": "1", "stepping": "0", "capability": "AVX2", "cores": 8}


def key(root, monkeypatch, files, cores=4):
    """The key of a machine with these files."""
    fake = types.SimpleNamespace(
        backends=types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: "DEFAULT"))
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(environment.device, "current", lambda: None)
    monkeypatch.setattr(environment.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(environment.platform, "processor", lambda: "aarch64")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return environment._key(environment._host(root), 1, (), {}).slug


def arm(*cores):
    return "\n\n".join(
        f"processor\t: {number}\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
        f"CPU variant\t: {variant}\nCPU part\t: {part}\nCPU revision\t: {revision}"
        for number, (part, variant, revision) in enumerate(cores)
    )


@pytest.mark.parametrize(
    "cores, name",
    [
        ([("0xd0c", "0x3", "1")] * 4, "f0x41m0xd0cs0x3p1"),  # Neoverse-N1
        ([("0xd08", "0x0", "3")] * 4, "f0x41m0xd08s0x0p3"),  # Cortex-A72
        ([("0xd4f", "0x0", "0")] * 4, "f0x41m0xd4fs0x0p0"),  # Neoverse-V2
        ([("0xd05", "0x1", "0"), ("0xd0a", "0x1", "0")], "f0x41m0xd05-0xd0as0x1p0"),  # two kinds in one
    ],
)
def test_arm_processors_are_told_apart(tmp_path, monkeypatch, cores, name):
    files = {"proc/cpuinfo": arm(*cores)}
    assert key(tmp_path, monkeypatch, files) == f"aarch64-{name}-default-4c-1t"


X86 = "processor : 0\ncpu family : 25\nmodel : 1\nmodel name : AMD EPYC\nstepping : 0\n\nprocessor : 1\n"


@pytest.mark.parametrize(
    "groups, cores",
    [
        ({}, "4c"),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, "4c"),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "800000 100000"}, "4c"),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000"}, "2c"),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, "1-5c"),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/x",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            "3c",
        ),
    ],
    ids=["no groups", "none", "more", "less", "broken", "v1"],
)
def test_a_quota_counts_as_fewer_processors(tmp_path, monkeypatch, groups, cores):
    found = key(tmp_path, monkeypatch, {"proc/cpuinfo": X86} | groups)
    assert found == f"amd-epyc-f25m1s0-default-{cores}-1t"


def test_macos_is_asked_for_its_processor(tmp_path, monkeypatch):
    asked = []

    def run(command, **_):
        asked.append(command)
        return types.SimpleNamespace(returncode=0, stdout="Apple M2 Pro\n")

    environment._brand.cache_clear()
    monkeypatch.setattr(environment.subprocess, "run", run)
    monkeypatch.setattr(environment.platform, "system", lambda: "Darwin")
    found = key(tmp_path, monkeypatch, {})
    environment._brand.cache_clear()
    assert asked == [["sysctl", "-n", "machdep.cpu.brand_string"]]
    assert found == "apple-m2-pro-default-4c-1t"


def test_a_key_names_what_decides():
    parts = PARTS | {"threads": 1, "accelerator": None}
    card = {"accelerator": "NVIDIA H200", "multiprocessors": 132, "accelerators": 1}

    assert environment._slug(parts, []) == "amd-epyc-tm-7b13-f25m1s0-avx2-8c-1t"
    assert environment._slug(parts | card, ["torch-2.13.0"]) == (
        "nvidia-h200-132sm-x1-amd-epyc-tm-7b13-f25m1s0-avx2-8c-1t-torch-2-13-0"
    )
    assert environment._slug(parts | {"family": "", "model": "", "stepping": ""}, []) == "amd-epyc-tm-7b13-avx2-8c-1t"


@pytest.mark.skipif(sys.platform != "linux", reason="only there threads are bound")
def test_all_threads_are_bound_and_freed_and_those_that_begin_meanwhile():
    ends = threading.Event()

    def thread():
        made = threading.Thread(target=ends.wait, daemon=True)
        made.start()
        return made

    before = os.sched_getaffinity(0)
    core = max(before)
    early = thread()
    binding = state.Binding()
    try:
        binding.bind(core)
        late = thread()
        assert [os.sched_getaffinity(each.native_id) for each in (early, late)] == [{core}, {core}]
        assert os.sched_getaffinity(0) == {core}
        binding.free()
        assert [os.sched_getaffinity(each.native_id) for each in (early, late)] == [before, before]
        assert os.sched_getaffinity(0) == before
    finally:
        binding.free()
        ends.set()


HELPERS = """
import subprocess
import threading
from pytest_perfdl.machine.state import Helpers

quiet = Helpers.now()
assert Helpers.now().since(quiet) == (False, False)
child = subprocess.Popen(["sleep", "60"])
assert Helpers.now().since(quiet)[0], "alive"
child.kill()
child.wait()
assert Helpers.now().since(quiet)[0], "it has ended meanwhile"
after = Helpers.now()
assert not Helpers.now().since(after)[0], "only what happens between the two counts"
burning = threading.Thread(target=lambda: sum(range(20_000_000)))
before = Helpers.now()
burning.start()
burning.join()
assert Helpers.now().since(before) == (False, True)
"""


@pytest.mark.long
def test_helpers_are_children_alive_or_ended_and_busy_threads():
    """In a process of its own: other tests leave children behind, which end at any time."""
    subprocess.run([sys.executable, "-c", HELPERS], check=True)


def test_other_threads_are_waited_for_until_they_sleep_or_the_time_is_over():
    ended, stop = [], threading.Event()

    def ends():
        hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000)
        ended.append(True)
        stop.wait()

    def never():
        while not stop.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000)

    threads = [threading.Thread(target=ends)]
    threads[0].start()
    try:
        assert state.wait_for_other_threads(60)
        assert ended == [True]
        threads.append(threading.Thread(target=never))
        threads[1].start()
        assert not state.wait_for_other_threads(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
