"""The share of memory that is free: of the machine, or of the container."""

import pytest

from pytest_perfdl.machine.proc import free_bytes, free_memory, kills_for_memory


def system(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:  800 kB\n"}
V2 = {"proc/self/cgroup": "0::/user/job\n"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/docker/1\n3:memory:/docker/1\n"}
NEW, OLD = "sys/fs/cgroup", "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({}, 1.0),
        (MACHINE, 0.8),
        (MACHINE | V2, 0.8),
        (MACHINE | V2 | {f"{NEW}/user/job/memory.max": "max\n", f"{NEW}/user/job/memory.current": "900\n"}, 0.8),
        (MACHINE | V2 | {f"{NEW}/user/job/memory.max": "1000\n", f"{NEW}/user/job/memory.current": "900\n"}, 0.1),
        (MACHINE | V2 | {f"{NEW}/user/memory.max": "1000\n", f"{NEW}/user/memory.current": "700\n"}, 0.3),
        (MACHINE | V2 | {f"{NEW}/memory.max": "1000\n", f"{NEW}/memory.current": "500\n"}, 0.5),
        (MACHINE | V2 | {f"{NEW}/memory.max": "1000\n", f"{NEW}/memory.current": "100\n"}, 0.8),
        (
            MACHINE
            | V2
            | {
                f"{NEW}/memory.max": "1000\n",
                f"{NEW}/memory.current": "900\n",
                f"{NEW}/memory.stat": "anon 300\ninactive_file 400\n",
            },
            0.5,
        ),
        (
            MACHINE
            | V1
            | {
                f"{OLD}/memory.limit_in_bytes": "1000\n",
                f"{OLD}/memory.usage_in_bytes": "900\n",
                f"{OLD}/memory.stat": "total_inactive_file 300\n",
            },
            0.4,
        ),
        (
            MACHINE
            | V1
            | {f"{OLD}/docker/1/memory.limit_in_bytes": "9223372036854771712\n", f"{OLD}/memory.usage_in_bytes": "9\n"},
            0.8,
        ),
    ],
    ids=[
        "nothing known",
        "machine",
        "no files of the group",
        "no limit",
        "limit",
        "limit of an outer group",
        "within a container",
        "the machine has less",
        "cached files are given back",
        "first version",
        "first version without a limit",
    ],
)
def test_the_least_share_counts(tmp_path, files, share):
    assert free_memory(system(tmp_path, files)) == pytest.approx(share)


def test_the_least_bytes_count(tmp_path):
    assert free_bytes(tmp_path) is None
    machine = {"proc/meminfo": "MemTotal: 8000 kB\nMemAvailable: 3000 kB\n"}
    assert free_bytes(system(tmp_path / "machine", machine)) == 3000 * 1024
    group = {
        f"{NEW}/memory.max": "2000000",
        f"{NEW}/memory.current": "600000",
        f"{NEW}/memory.stat": "inactive_file 100000\n",
    }
    assert free_bytes(system(tmp_path / "group", V2 | machine | group)) == 1_500_000
    full = group | {f"{NEW}/memory.current": "2500000"}
    assert free_bytes(system(tmp_path / "full", V2 | machine | full)) == 0


def test_processes_that_were_killed_for_memory_are_counted_in_every_group(tmp_path):
    assert kills_for_memory(tmp_path) == 0
    events = {f"{NEW}/user/job/memory.events": "oom 3\noom_kill 2\n", f"{NEW}/memory.events": "oom_kill 5\n"}
    assert kills_for_memory(system(tmp_path / "second", V2 | events)) == 7
    first = V1 | {f"{OLD}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}
    assert kills_for_memory(system(tmp_path / "first", first)) == 1
