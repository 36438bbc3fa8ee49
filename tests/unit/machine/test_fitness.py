"""Whether a machine is fit to measure: each check is shown made-up machines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_perfdl.machine import fitness, proc, processors
from pytest_perfdl.machine.findings import Answer, as_list, listed, run
from pytest_perfdl.machine.reference_load import Noise

CPU = "sys/devices/system/cpu"
CLOCK = "sys/devices/system/clocksource/clocksource0"
WORKER = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_TOP_PAD_": "268435456"}


@pytest.fixture
def machine(tmp_path):
    """Files of a machine, by path and text."""

    def make(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return make


def one(findings):
    (finding,) = findings
    return finding


def level(findings):
    return one(findings).level


@pytest.mark.parametrize(
    "text, numbers", [("0", [0]), ("0-3", [0, 1, 2, 3]), ("0-1,4,6-7", [0, 1, 4, 6, 7])], ids=["one", "range", "mixed"]
)
def test_kernel_lists(text, numbers):
    assert sorted(listed(text)) == numbers
    assert as_list(numbers) == text


@pytest.mark.parametrize("shared, number", [(["0-3"] * 4, 1), (["0-1", "0-1", "2-3", "2-3"], 2), ([], 1)])
def test_last_level_caches(machine, shared, number):
    files = {}
    for cpu, cpus in enumerate(shared):
        # Each has caches of its own on the first level.
        for index, (level, own) in enumerate([(1, str(cpu)), (3, cpus)]):
            files |= {
                f"{CPU}/cpu{cpu}/cache/index{index}/{name}": text
                for name, text in (("level", level), ("shared_cpu_list", own))
            }
    assert processors.last_caches(machine(files)) == number


@pytest.mark.parametrize(
    "governors, expected, found",
    [
        (["performance", "performance"], "ok", "governor performance on 2 CPUs"),
        (["powersave", "powersave"], "warn", "governor powersave on 2 of 2 CPUs"),
        (
            ["performance", "schedutil", "schedutil"],
            "warn",
            "governor schedutil on 2 of 3 CPUs, performance on 1",
        ),
    ],
    ids=["fixed", "follows", "mixed"],
)
def test_governors(machine, governors, expected, found):
    root = machine({f"{CPU}/cpu{i}/cpufreq/scaling_governor": name for i, name in enumerate(governors)})
    finding = one(processors.frequency(root))
    assert finding.level == expected
    assert finding.found.startswith(found)
    assert (finding.do == "") == (expected == "ok")


@pytest.mark.parametrize(
    "name, value, expected, do",
    [
        ("intel_pstate/no_turbo", 0, "note", f"echo 1 | sudo tee /{CPU}/intel_pstate/no_turbo"),
        ("intel_pstate/no_turbo", 1, "ok", ""),
        ("cpufreq/boost", 1, "note", f"echo 0 | sudo tee /{CPU}/cpufreq/boost"),
        ("cpufreq/boost", 0, "ok", ""),
    ],
    ids=["intel-on", "intel-off", "boost-on", "boost-off"],
)
def test_turbo(machine, name, value, expected, do):
    finding = one(processors.turbo(machine({f"{CPU}/{name}": value})))
    assert (finding.level, finding.do) == (expected, do)


@pytest.mark.parametrize("plugged, expected", [(1, "ok"), (0, "warn")], ids=["mains", "battery"])
def test_power(machine, plugged, expected):
    supplies = "sys/class/power_supply"
    files = {f"{supplies}/AC/type": "Mains", f"{supplies}/AC/online": plugged, f"{supplies}/BAT0/type": "Battery"}
    assert level(processors.power(machine(files))) == expected


@pytest.mark.parametrize(
    "allowed, expected, found",
    [
        (range(8), "ok", "8 of 8 CPUs available to this process"),
        ((2, 3, 5), "note", "3 of 8 CPUs available to this process: 2-3,5"),
        ((4,), "warn", "1 of 8 CPUs available to this process"),
    ],
    ids=["all", "some", "one"],
)
def test_affinity(machine, allowed, expected, found):
    finding = one(processors.affinity(machine({f"{CPU}/online": "0-7"}), frozenset(allowed)))
    assert (finding.level, finding.found) == (expected, found)


def test_siblings_are_named_with_a_command_that_avoids_them(machine):
    pairs = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}
    root = machine({f"{CPU}/cpu{i}/topology/thread_siblings_list": text for i, text in pairs.items()})
    finding = one(processors.siblings(root, frozenset(pairs)))
    assert (finding.level, finding.found) == ("note", "4 CPUs on 2 cores")
    assert finding.do == "taskset -c 0-1 pytest --perf"
    # The sibling of an allowed processor that may not be used itself is others' business.
    assert level(processors.siblings(root, frozenset({0, 5}))) == "ok"
    assert processors.siblings(root, frozenset({0, 7})) == []


V2 = "sys/fs/cgroup"


@pytest.mark.parametrize(
    "files, expected, found",
    [
        ({"proc/self/cgroup": "0::/"}, "ok", "no quota below"),
        ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "max 100000"}, "ok", "no quota below"),
        ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "400000 100000"}, "ok", "no quota below"),
        ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "150000 100000"}, "warn", "1.5 of 4 CPUs"),
        ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "99000 100000"}, "bad", "0.99 of 4 CPUs"),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                f"{V2}/a/cpu.max": "200000 100000",
                f"{V2}/a/cpu.stat": "nr_periods 900\nnr_throttled 120",
                f"{V2}/a/b/cpu.max": "300000 100000",
            },
            "warn",
            "2 of 4 CPUs for this container, period 100.0 ms; throttled in 120 of 900 periods",
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/f00\n1:cpu,cpuacct:/docker/f00",
                f"{V2}/cpu,cpuacct/cpu.cfs_quota_us": "50000",
                f"{V2}/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            "bad",
            "0.5 of 4 CPUs",
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                f"{V2}/cpu/cpu.cfs_quota_us": "-1",
                f"{V2}/cpu/cpu.cfs_period_us": "100000",
            },
            "ok",
            "no quota below",
        ),
        ({"proc/self/cgroup": "0::/../..", f"{V2}/cpu.max": "100000 100000"}, "warn", "1 of 4 CPUs"),
    ],
    ids=["no-file", "v2-max", "v2-enough", "v2-some", "v2-below-one", "v2-parent", "v1-mounted", "v1-none", "outside"],
)
def test_quotas(machine, files, expected, found):
    finding = one(processors.quota(machine(files), 4))
    assert finding.level == expected
    assert finding.found.startswith(found)


@pytest.mark.parametrize(
    "source, resolution, reading, expected",
    [
        ("tsc", 40, 60, "ok"),
        ("tsc", 40, 300, "warn"),
        ("tsc", 1000, 60, "warn"),
        ("tsc", 40, 1000, "bad"),
        ("hpet", 40, 60, "bad"),
        ("xen", 40, 60, "warn"),
    ],
    ids=["fast", "slow-reading", "coarse", "very-slow", "hpet", "xen"],
)
def test_clocks(machine, source, resolution, reading, expected):
    root = machine({f"{CLOCK}/current_clocksource": source, f"{CLOCK}/available_clocksource": "tsc hpet"})
    finding = one(processors.clock(root, resolution, reading))
    assert finding.level == expected
    assert finding.do == (f"echo tsc | sudo tee /{CLOCK}/current_clocksource" if source != "tsc" else "")


def test_the_clock_of_an_unknown_system_is_judged_by_its_figures(tmp_path):
    assert one(processors.clock(tmp_path, 42, 50)).found == "resolution 42 ns, 50 ns per reading"
    resolution, reading = processors.clock_figures(100)
    assert resolution > 0
    assert reading >= 0


def sample(wall_s, *, busy=(0, 0), stolen=0, total=1000, processes=(), swapped=0, throttled=0):
    named = {pid: proc.ProcessState(name, "R", group, ticks, 0, "") for pid, name, group, ticks in processes}
    return fitness.Sample(wall_s, 100, dict(enumerate(busy)), stolen, total, named, swapped, throttled)


BEFORE = sample(10.0, processes=[(1, "init", 1, 900), (7, "own", 7, 5), (40, "python3", 40, 100), (41, "c++", 40, 3)])


@pytest.mark.parametrize(
    "busy, expected",
    [((5, 9), "ok"), ((12, 18), "warn"), ((100, 20), "warn"), ((100, 25), "bad")],
    ids=["quiet", "noticed", "one-left", "none-left"],
)
def test_load_of_others(busy, expected):
    # In 1 s each processor has 100 ticks; 10 of those used were our own.
    after = sample(11.0, busy=busy, processes=[(7, "own", 7, 15), (40, "python3", 40, 180), (41, "c++", 40, 13)])
    finding = one(fitness.others(BEFORE, after, frozenset({0, 1}), 7))
    assert finding.level == expected
    assert finding.found.startswith(f"other processes use {(sum(busy) - 10) / 100:.2f} of 2 CPUs")
    if expected != "ok":
        assert finding.found.endswith("busiest: python3 (40) 0.90")
        assert finding.do.endswith("ps -o pid,etime,args -p 40")


def test_load_elsewhere_is_not_ours():
    after = sample(11.0, busy=(100, 0))
    assert level(fitness.others(BEFORE, after, frozenset({1}), 7)) == "ok"
    assert level(fitness.others(BEFORE, after, frozenset({0}), 7)) == "bad"
    assert fitness.others(BEFORE, after, frozenset({9}), 7) == []
    assert fitness.others(BEFORE, BEFORE, frozenset({0}), 7) == []


def test_a_sample_reads_the_kernels_counters(machine):
    root = machine(
        {
            "proc/stat": "cpu  10 1 5 100 20 2 1 3 0 0\ncpu0 6 1 3 50 10 1 1 2 0 0\ncpu1 4 0 2 50 10 1 0 1 0 0\nintr 5",
            "proc/12/stat": "12 (a (b) c) S 1 9 9 0 -1 4194560 1 2 3 4 30 12 0 0 20 0 1 0 5",
            "proc/vmstat": "pgfault 5\npswpin 3\npswpout 4",
            f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "2",
            f"{CPU}/cpu0/thermal_throttle/package_throttle_count": "5",
        }
    )
    taken = fitness.Sample.take(root, 1.0, 100)
    assert taken == fitness.Sample(
        1.0,
        100,
        {0: 14, 1: 8},
        3,
        142,
        {12: proc.ProcessState("a (b) c", "S", 9, 42, 0, "")},
        swapped_pages=7,
        throttled=5,
    )


@pytest.mark.parametrize(
    "averages, expected",
    [("1.00 9.00 9.00 1/90 5", "ok"), ("1.01 0 0 1/90 5", "note"), ("2.01 0 0 1/90 5", "warn")],
    ids=["half", "above-half", "above-all"],
)
def test_load_average(machine, averages, expected):
    assert level(fitness.average(machine({"proc/loadavg": averages}), 2)) == expected


@pytest.mark.parametrize(
    "before, after, flags, expected",
    [
        ((0, 1000), (0, 1200), "fpu tsc", "ok"),
        ((0, 1000), (0, 1200), "fpu hypervisor", "note"),
        ((0, 1000), (4, 1200), "fpu hypervisor", "warn"),
        ((0, 1000), (21, 1200), "fpu hypervisor", "bad"),
        ((100, 1000), (100, 1200), "fpu", "warn"),
    ],
    ids=["own-machine", "guest", "little", "much", "earlier"],
)
def test_stolen_time(machine, before, after, flags, expected):
    root = machine({"proc/cpuinfo": f"processor\t: 0\nflags\t\t: {flags}"})
    samples = [sample(0.0, stolen=stolen, total=total) for stolen, total in (before, after)]
    assert level(fitness.stolen(root, *samples)) == expected


@pytest.mark.parametrize(
    "before, after, expected", [(0, 0, "ok"), (7, 7, "note"), (7, 8, "bad")], ids=["never", "earlier", "now"]
)
def test_throttling(before, after, expected):
    assert level(fitness.throttling(sample(0.0, throttled=before), sample(1.0, throttled=after))) == expected
    assert fitness.throttling(sample(0.0, throttled=None), sample(1.0)) == []


def test_swapping():
    assert level(fitness.swapping(sample(0.0, swapped=5), sample(1.0, swapped=5), 4096)) == "ok"
    finding = one(fitness.swapping(sample(0.0, swapped=5), sample(1.0, swapped=6), 4096))
    assert (finding.level, finding.found) == ("bad", "4.000 KiB were swapped during this check")


@pytest.mark.parametrize(
    "total_mib, free_mib, swapped_mib, expected",
    [
        (64_000, 2048, 0, "ok"),
        (64_000, 2047, 0, "warn"),
        (10_000, 1000, 0, "ok"),
        (10_000, 999, 0, "warn"),
        (10_000, 5000, 256, "ok"),
        (10_000, 5000, 257, "note"),
    ],
    ids=["least", "too-little", "tenth", "below-tenth", "some-swap", "much-swap"],
)
def test_memory(machine, total_mib, free_mib, swapped_mib, expected):
    values = {"MemTotal": total_mib, "MemAvailable": free_mib, "SwapTotal": 1024, "SwapFree": 1024 - swapped_mib}
    text = "\n".join(f"{name}:{value * 1024:12} kB" for name, value in values.items())
    assert level(fitness.memory(machine({"proc/meminfo": text}))) == expected


@pytest.mark.parametrize(
    "text, expected",
    [("[always] madvise never", "note"), ("always [madvise] never", "ok"), ("always madvise [never]", "ok")],
    ids=["always", "madvise", "never"],
)
def test_huge_pages(machine, text, expected):
    assert level(fitness.huge_pages(machine({"sys/kernel/mm/transparent_hugepage/enabled": text}))) == expected


def test_the_allocator():
    pinned = one(fitness.allocator({}, WORKER, "glibc"))
    assert (pinned.level, pinned.found) == ("ok", "measured processes run with MALLOC_TOP_PAD_=268435456")
    assert level(fitness.allocator({}, WORKER, "")) == "note"
    assert "jemalloc" in one(fitness.allocator({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, WORKER, "glibc")).found


def test_thread_variables():
    assert one(fitness.threads({}, WORKER)).found == "measured processes run with OMP_NUM_THREADS=1 MKL_NUM_THREADS=1"
    same = fitness.threads({"OMP_NUM_THREADS": "1"}, WORKER)
    assert level(same) == "ok"
    here = {"OMP_NUM_THREADS": "8", "OMP_PROC_BIND": "close"}
    replaced, kept = fitness.threads(here, here | WORKER)
    assert (replaced.level, kept.level) == ("note", "note")
    assert "OMP_NUM_THREADS=8 in this shell, 1 in measured processes" in replaced.found
    assert kept.found == "measured processes inherit OMP_PROC_BIND=close"
    assert kept.do.startswith("unset OMP_PROC_BIND")


def test_variables_that_slow_every_step():
    assert level(fitness.variables({"CUDA_LAUNCH_BLOCKING": "0", "PYTHONDEVMODE": ""})) == "ok"
    found = fitness.variables({"CUDA_LAUNCH_BLOCKING": "1", "PYTHONMALLOC": "malloc"})
    assert [(finding.level, finding.do) for finding in found] == [
        ("bad", "unset CUDA_LAUNCH_BLOCKING"),
        ("warn", "unset PYTHONMALLOC"),
    ]


def test_tracers(machine):
    root = machine({"proc/self/status": "Name:\tpython\nTracerPid:\t0"})
    assert level(fitness.tracer(root, "")) == "ok"
    assert (
        one(fitness.tracer(root, "a trace function from coverage")).found == "a trace function from coverage is active"
    )
    root = machine({"proc/self/status": "TracerPid:\t77", "proc/77/comm": "gdb"})
    assert one(fitness.tracer(root, "")).found == "gdb (77) traces this process"


@pytest.mark.parametrize(
    "configured, expected",
    [({"Py_DEBUG": 0, "Py_GIL_DISABLED": 0}, "ok"), ({"Py_DEBUG": 1}, "bad"), ({"Py_GIL_DISABLED": 1}, "note")],
    ids=["release", "debug", "free-threaded"],
)
def test_builds_of_python(configured, expected):
    assert level(fitness.python_build("3.13.1", configured)) == expected


DROPS = "silently dropped"
GRAPHS = "linked to a wrong launch"
SKEW = "before their launch"
TWICE = "counted twice"
LOOPS = "first iteration only"
MISSING = "missing from a profile"


@pytest.mark.parametrize(
    "packages, device_here, effects",
    [
        ({}, True, []),
        ({"torch": "2.3.1+cpu"}, False, ["rounds to microseconds"]),
        ({"torch": "2.4.0+cpu"}, False, []),
        ({"torch": "2.4.0a0"}, False, []),
        ({"torch": "2.9.0+cu128"}, False, [TWICE]),
        ({"torch": "2.8.0+cu128"}, True, [DROPS, GRAPHS, LOOPS, SKEW]),
        ({"torch": "2.8.0+cu130"}, True, [DROPS, GRAPHS, LOOPS, SKEW]),
        ({"torch": "2.14.0+cu132"}, True, [TWICE, LOOPS, SKEW]),
        ({"torch": "2.12.0"}, False, [TWICE, "time 0 and duration 0"]),
        ({"torch": "2.8.0", "nvidia-cuda-cupti-cu12": "12.6.80"}, True, [DROPS, GRAPHS, LOOPS, SKEW]),
        ({"torch": "2.8.0", "nvidia-cuda-cupti-cu12": "12.6.68"}, True, [GRAPHS, LOOPS, SKEW]),
        ({"torch": "2.8.0", "nvidia-cuda-cupti": "13.0.85"}, True, [DROPS, GRAPHS, LOOPS, SKEW]),
        ({"torch": "2.8.0", "nvidia-cuda-cupti": "13.1.75"}, True, [GRAPHS, LOOPS, SKEW]),
        ({"torch": "2.8.0", "nvidia-cuda-cupti": "13.1.115"}, True, [LOOPS, SKEW]),
        ({"torch": "2.8.0+rocm6.4"}, False, ["MI300X"]),
        ({"torch": "2.8.0+rocm7.2"}, False, [MISSING]),
        ({"torch": "2.8.0+rocm7.2.2"}, False, []),
        ({"torch": "2.7.0+xpu", "intel-pti": "0.10.1"}, False, [MISSING]),
    ],
    ids=[
        "no-torch", "old", "first-good", "preview", "no-gpu", "12.8", "13.0", "13.2", "2.12", "12.6u2", "12.6u1",
        "package-13.0", "package-13.1", "package-13.1u1", "rocm-6.4", "rocm-7.2", "rocm-7.2.2", "xpu",
    ],
)  # fmt: skip
def test_versions_known_to_be_bad(packages, device_here, effects):
    findings = fitness.versions(packages.get, device_here)
    bad = [finding for finding in findings if "https://github.com/" in finding.why]
    assert len(bad) == len(effects)
    for finding, effect in zip(bad, effects, strict=True):
        assert effect in finding.why
    assert bad or level(findings) == ("ok" if packages else "note")


def test_history_of_a_real_repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    # What git says is looked at, whatever the language of the user.
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")

    def found(folder):
        (finding,) = fitness.history(folder)
        assert ("fetch-depth: 0" in finding.do) == (finding.found == "shallow clone")
        return finding.level, finding.found

    project = tmp_path / "project"
    project.mkdir()
    assert found(project) == ("warn", "not in a git repository")
    git = ("git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "init", "-q"], check=True)
    assert found(project) == ("warn", "repository without commits")
    for number in range(2):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", str(number)], check=True)
    assert found(project) == ("ok", "full history, 2 commits")
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{project}", str(tmp_path / "shallow")], check=True)
    assert found(tmp_path / "shallow") == ("warn", "shallow clone")
    (project / ".git" / "config").write_text("[core\n")
    level, said = found(project)
    assert level == "warn"
    assert said.startswith("git failed: bad config line 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found(project) == ("warn", "git is not installed")


def test_programs_that_are_missing_or_slow(monkeypatch):
    assert run(["no-such-program-of-ours"]) is None
    assert run(["false"]).code == 1
    monkeypatch.setattr("pytest_perfdl.machine.findings.ANSWER_SECONDS", 0.05)
    assert run(["sleep", "5"]) == Answer(None, "")


class Smi:
    """`nvidia-smi` of a made-up GPU; fields set to None are refused as old and new drivers refuse them."""

    def __init__(self, *users, **changes):
        self.row = {
            "index": "0",
            "name": "NVIDIA H100",
            "uuid": "GPU-1",
            "persistence_mode": "Enabled",
            "clocks.current.sm": "1980",
            "clocks.max.sm": "1980",
            "clocks.applications.graphics": "[N/A]",
            "clocks_event_reasons.active": "0x0000000000000001",
            "clocks_throttle_reasons.active": None,
            "utilization.gpu": "0",
            "power.limit": "700.00",
            "power.default_limit": "700.00",
            "ecc.mode.current": "Enabled",
            "mig.mode.current": "Disabled",
        } | {name.replace("__", "."): value for name, value in changes.items()}
        self.users = users

    def __call__(self, command):
        if command[0] != "nvidia-smi":
            return None
        kind, _, names = command[1].partition("=")
        if kind == "--query-compute-apps":
            return Answer(0, "\n".join(self.users))
        for name in names.split(","):
            if self.row[name] is None:
                return Answer(2, f'Field "{name}" is not a valid field to query.')
        return Answer(0, ", ".join(self.row[name] for name in names.split(",")))


def levels(smi):
    return [finding.level for finding in fitness.nvidia(Path("/nowhere"), smi)]


@pytest.mark.parametrize(
    "changes, expected, text",
    [
        ({}, ["note", "ok"], "SM clock 1980 MHz (maximum 1980 MHz)"),
        ({"clocks_event_reasons__active": "0x0000000000000004"}, ["warn", "ok"], "power cap"),
        ({"clocks_event_reasons__active": "0x0000000000000044"}, ["bad", "ok"], "thermal slowdown, power cap"),
        ({"clocks_event_reasons__active": "0x0000000000000002"}, ["note", "ok"], "SM clock"),
        ({"clocks_event_reasons__active": None, "clocks_throttle_reasons__active": "0x0000000000000008"},
         ["bad", "ok"], "hardware slowdown"),
        ({"clocks_event_reasons__active": "[N/A]"}, ["note", "ok"], "SM clock"),
        ({"persistence_mode": "Disabled"}, ["note", "warn", "ok"], "persistence mode off"),
        ({"power__limit": "500.00"}, ["note", "warn", "ok"], "power limit 500 W, default 700 W"),
        ({"power__limit": "[N/A]"}, ["note", "ok"], "SM clock"),
        ({"mig__mode__current": "Enabled"}, ["note", "note"], "MIG on"),
        ({"utilization__gpu": "10"}, ["note", "bad", "ok"], "in use; utilization now 10%"),
        ({"utilization__gpu": "9"}, ["note", "ok"], "SM clock"),
    ],
    ids=["idle", "power-cap", "thermal", "application", "old-driver", "no-reasons", "no-persistence", "power-limit",
         "no-limit", "mig", "busy", "hardly-busy"],
)  # fmt: skip
def test_gpus(changes, expected, text):
    findings = fitness.nvidia(Path("/nowhere"), Smi(**changes))
    assert [finding.level for finding in findings] == expected
    assert any(text in finding.found for finding in findings)
    assert fitness.present(findings)


def test_other_processes_on_the_gpu():
    assert levels(Smi("GPU-1, 4821, /usr/bin/python3, 1024")) == ["note", "warn", "ok"]
    assert levels(Smi("GPU-2, 4821, /usr/bin/python3, 1024")) == ["note", "ok"]
    assert levels(Smi("a warning of the driver")) == ["note", "ok"]
    smi = Smi("GPU-1, 4821, /usr/bin/python3, 1024", "GPU-1, 5, a.out, [N/A]", utilization__gpu="80")
    sharing = fitness.nvidia(Path("/nowhere"), smi)[1]
    assert sharing.found == "used by 2 processes: python3 (4821, 1024 MiB), a.out (5); utilization now 80%"


def test_clocks_are_locked_where_applications_run():
    locked = fitness.nvidia(Path("/nowhere"), Smi(clocks__applications__graphics="1755"))[0]
    assert locked.do.startswith("sudo nvidia-smi -i 0 --lock-gpu-clocks=1755,1755")


def test_no_gpu_and_broken_drivers(machine):
    root = machine({})
    assert level(fitness.nvidia(root, lambda command: None)) == "ok"
    assert level(fitness.nvidia(root, lambda command: Answer(None, ""))) == "bad"
    broken = Answer(18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570")
    finding = one(fitness.nvidia(root, lambda command: broken))
    assert (finding.level, fitness.present([finding])) == ("warn", False)
    assert "version mismatch" in finding.found
    assert level(fitness.nvidia(machine({"proc/driver/nvidia/version": "NVRM"}), lambda command: None)) == "warn"


def test_amd_gpus():
    assert level(fitness.rocm(lambda command: None)) == "ok"
    assert level(fitness.rocm(lambda command: Answer(0, "GPU[0]"))) == "note"


@pytest.mark.parametrize(
    "spread, expected, limit",
    [
        (0.0, "ok", "2.0%"),
        (0.0158, "ok", "3.0%"),
        (0.016, "warn", "3.0%"),
        (0.0529, "warn", "10.0%"),
        (0.054, "bad", "10.2%"),
    ],
    ids=["least", "default", "above-default", "unpaired", "above-unpaired"],
)
def test_noise_in_terms_of_limits(spread, expected, limit):
    finding = fitness.noise_finding(Noise(spread, 2 * spread))
    assert finding.level == expected
    assert finding.why.endswith(f": {limit}")


def place(root, **changes):
    parts = {
        "environment": {},
        "worker_environment": WORKER,
        "project": root,
        "root": root,
        "run": lambda command: None,
    }
    return fitness.Place(**(parts | {"installed": {"torch": "2.9.0"}.get, "allowed": frozenset({0, 1})} | changes))


def test_a_system_that_says_nothing_is_listed_as_not_known(tmp_path):
    findings = fitness.examine(place(tmp_path), timed=False, window_s=0)
    ranks = [fitness.LEVELS.index(finding.level) for finding in findings]
    assert ranks == sorted(ranks)
    unknown = one(finding for finding in findings if finding.topic == "unknown")
    assert unknown.found == (
        "CPU quota, load average, frequency, turbo, power, SMT, memory, huge pages, "
        "load now, stolen time, throttling, swapping"
    )


FILES = (
    "proc/stat", "proc/vmstat", "proc/loadavg", "proc/meminfo", "proc/cpuinfo", "proc/self/cgroup", "proc/self/status",
    "proc/12/stat", f"{V2}/cpu.max", f"{CPU}/online", f"{CPU}/cpu0/cpufreq/scaling_governor", f"{CPU}/cpufreq/boost",
    f"{CPU}/cpu0/topology/thread_siblings_list", f"{CPU}/cpu0/thermal_throttle/core_throttle_count",
    f"{CLOCK}/current_clocksource", "sys/kernel/mm/transparent_hugepage/enabled",
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "-",
        "1:2",
        ":",
        "cpu a b",
        "cpu 1 2 3 4 5 6 7 8\ncpux 1 2",
        "1 (x) S 1 b c d e f g h i j k l m",
        "[",
        "9" * 30,
    ],
    ids=["empty", "word", "dash", "pair", "colon", "letters", "half", "process", "bracket", "huge"],
)
def test_files_of_any_other_form_are_survived(machine, text):
    root = machine(dict.fromkeys(FILES, text))
    odd = place(root, run=lambda command: Answer(0, text))
    findings = fitness.examine(odd, timed=False, window_s=0)
    assert findings
    json.dumps([finding.found for finding in findings])


def test_the_gpu_decides_which_versions_matter(machine):
    packages = {"torch": "2.9.0+cu128"}.get
    with_gpu = fitness.examine(place(machine({}), run=Smi(), installed=packages), timed=False, window_s=0)
    assert any(DROPS in finding.why for finding in with_gpu)
    without = fitness.examine(place(machine({}), installed=packages), timed=False, window_s=0)
    assert not any(DROPS in finding.why for finding in without)


def test_this_machine_is_examined_without_importing_torch(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from pytest_perfdl.machine import fitness\n"
        "found = fitness.examine(fitness.Place(dict(os.environ), {}, Path.cwd()), timed=False, window_s=0.01)\n"
        "assert len(found) > 5 and 'torch' not in sys.modules and 'numpy' not in sys.modules, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
